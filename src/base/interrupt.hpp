// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace aisp::base {

// SIGINT and SIGTERM (and SIGHUP, unless it is ignored) set a flag, so that what was measured can be written. The second SIGINT
// ends the process at once with status 130.
void install_interrupt_handlers();
bool interrupted();
int interrupt_fd();      // becomes readable with the first signal; -1 before the handlers are installed
int interrupt_signal();  // the first one; 0 when there was none
void reset_interrupt();  // for tests

}  // namespace aisp::base
