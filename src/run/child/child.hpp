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

// Runs the hidden command `aisp __child FD`: reads one Request from stdin, runs it, writes lines to FD. Returns the exit status.
int child_main(int result_fd);

// Runs the hidden command `aisp __execute REQUEST VARIANT` under ncu or nsys: sets up the pair of a request (JSON) and executes
// the variant once, like a sample, between cudaProfilerStart and cudaProfilerStop. Returns the exit status.
int execute_main(const std::string& request, const std::string& variant);

// Runs all stages of one pair in this process. The pair's faults are in the result; they never throw. --in-process calls it
// directly.
evidence::PairResult run_pair(const pair::Entry& entry, const Request& request, const Reporter& reporter);

}  // namespace aisp::run
