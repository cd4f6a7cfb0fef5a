// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>

#include "pair/session.hpp"
#include "run/child/context.hpp"
#include "run/child/record.hpp"

namespace aisp::run {

// Returns the options of a session at the timed shape.
pair::SessionOptions session_options(const Context& context);

// Checks the pair's needs, opens its session, which `resources` owns even if this throws, and asks the workload for its costs.
// Returns the bytes of device memory that were free before (0 for a host pair), or nothing if the pair ends here: skipped, or
// failed.
std::optional<std::uint64_t> set_up(const Context& context, Record& record, Resources& resources);

}  // namespace aisp::run
