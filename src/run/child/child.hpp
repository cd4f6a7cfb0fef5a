// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <string>

#include "evidence/result.hpp"
#include "pair/registry.hpp"
#include "run/wire/request.hpp"

namespace aisp::run {

// Receives what the child says; the real one writes JSON lines to the parent's pipe.
struct Reporter {
  std::function<void(const std::string& line)> send;
};

// Throws base::Error (usage) when this executable has no such pair.
const pair::Entry& find_pair(const std::string& target);

// Runs all stages of one pair in this process: set-up, verification, warm-up, measurement, second verification, audit, teardown.
// Never throws for what a pair does wrong: that is in the result. Also used directly by --in-process.
evidence::PairResult run_pair(const pair::Entry& entry, const Request& request, const Reporter& reporter);

// Entry of the hidden command `aisp __child FD`: reads one Request from stdin, runs it, writes lines to FD. Returns the exit
// status.
int child_main(int result_fd);

}  // namespace aisp::run
