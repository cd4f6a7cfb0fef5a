// SPDX-License-Identifier: Apache-2.0
// What commands that work from recorded expectations share.
#pragma once
#include <string>
#include <vector>

#include "evidence/expectations.hpp"
#include "report/chapter_table.hpp"

namespace aisp::cli {

inline constexpr const char* default_expectations_dir = "expectations";

// Every expectation in `folder`. The default folder may be missing, as nothing may be recorded yet; throws base::Error (usage)
// when another one is.
std::vector<evidence::Expectations> read_recorded(const std::string& folder);

// The pairs of this executable, in the order of the registry.
std::vector<report::KnownPair> known_pairs();

}  // namespace aisp::cli
