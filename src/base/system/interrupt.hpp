// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace aisp::base {

// SIGINT and SIGTERM (and SIGHUP, unless it is ignored) set a flag, so that what was measured can be written. The second SIGINT
// ends the process at once with status 130.
void install_interrupt_handlers();
bool interrupted();
void reset_interrupt();  // for tests

// While this lives, the first signal too ends the process at once, with status 130 and `last_words` on the standard error: for
// work that looks at no flag.
class InterruptEndsAtOnce {
 public:
  explicit InterruptEndsAtOnce(std::string last_words);
  ~InterruptEndsAtOnce();
  InterruptEndsAtOnce(const InterruptEndsAtOnce&) = delete;
  InterruptEndsAtOnce& operator=(const InterruptEndsAtOnce&) = delete;

 private:
  std::string last_words_;
};

}  // namespace aisp::base
