// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "pair/registry.hpp"

namespace aisp::run {

// Throws base::Error (usage) when this executable has no such pair.
const pair::Entry& find_pair(const std::string& target);

// Entry of the hidden command `aisp __child FD`: reads one Request from stdin, runs it, writes lines to FD. Returns the exit
// status.
int child_main(int result_fd);

}  // namespace aisp::run
