// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <stdexcept>

namespace aisp::base {

// The only exit statuses of the program.
enum class Exit : int {
  good = 0,
  failed = 1,  // a pair was wrong, crashed or timed out
  usage = 2,
  regression = 3,
  unfit = 4,    // this environment cannot do what was asked
  nothing = 5,  // nothing selected, or nothing to compare
  interrupted = 130,
};

// One line for stderr: what was wrong, where, what to do. Only main() catches it.
class Error : public std::runtime_error {
 public:
  Error(Exit status, const std::string& line) : std::runtime_error{line}, status_{status} {}
  Exit status() const noexcept { return status_; }

 private:
  Exit status_;
};

}  // namespace aisp::base
