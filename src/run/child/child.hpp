// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "evidence/result.hpp"
#include "pair/registry.hpp"
#include "run/child/stages.hpp"
#include "run/wire/request.hpp"

namespace aisp::run {

// Throws base::Error (usage) when this executable has no such pair.
const pair::Entry& find_pair(const std::string& target);

// Entry of the hidden command `aisp __child FD`: reads one Request from stdin, runs it, writes lines to FD. Returns the exit
// status.
int child_main(int result_fd);

// The hidden command `aisp __execute REQUEST VARIANT`, what ncu and nsys are put around: sets the pair of a request (JSON) up,
// executes the variant once, as a sample is executed, between cudaProfilerStart and cudaProfilerStop. Returns the exit status.
int execute_main(const std::string& request, const std::string& variant);

// Runs all stages of one pair in this process. Never throws for what the pair does wrong: that is in the result. Also used
// directly by --in-process.
evidence::PairResult run_pair(const pair::Entry& entry, const Request& request, const Reporter& reporter);

}  // namespace aisp::run
