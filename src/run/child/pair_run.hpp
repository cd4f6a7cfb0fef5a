// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "evidence/result.hpp"
#include "pair/registry.hpp"
#include "run/child/reporter.hpp"
#include "run/wire/request.hpp"

namespace aisp::run {

// Runs all stages of one pair in this process. Never throws for what the pair does wrong: that is in the result. Also used
// directly by --in-process.
evidence::PairResult run_pair(const pair::Entry& entry, const Request& request, const Reporter& reporter);

}  // namespace aisp::run
