// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "machine/ceilings.hpp"
#include "peak/figures.hpp"

namespace aisp::peak {

// `known` with everything that was measured in its place. What was not stays, and the source says so; `with_peers`: also
// where that is the rate between GPUs.
machine::Ceilings measured_over(machine::Ceilings known, const Record& record, bool with_peers);

// The best that is known of this GPU or host without measuring: the cache's record over what was recorded elsewhere.
machine::Ceilings best_known(const machine::Gpu& gpu, const std::string& driver, bool with_peers);
machine::Ceilings best_known(const machine::Host& host);

}  // namespace aisp::peak
