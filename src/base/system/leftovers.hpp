// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace aisp::base {

// Live processes of a group, and those that carry `mark` ("NAME=value") in their environment: a child's children stay findable
// after they have left its group or lost their parent.
struct Leftover {
  pid_t pid = 0;
  std::string name;
  bool in_group = true;
};
std::vector<Leftover> find_leftovers(pid_t group, const std::string& mark);

// Kills them, again until none is found (a forking process may be ahead by one); returns those of the first look.
std::vector<Leftover> kill_leftovers(pid_t group, const std::string& mark);

}  // namespace aisp::base
