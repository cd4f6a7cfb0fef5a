// SPDX-License-Identifier: Apache-2.0
#include "base/system/interrupt.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>
#include <utility>

#include "base/error.hpp"
#include "base/system/files.hpp"

namespace aisp::base {
namespace {

volatile sig_atomic_t first_signal = 0;
volatile sig_atomic_t keyboard_signals = 0;
std::atomic<const std::string*> parting_words{nullptr};
static_assert(decltype(parting_words)::is_always_lock_free, "a signal handler reads it");

void end_at_once(const std::string& last_words) {
  write_all(STDERR_FILENO, last_words);
  ::_exit(static_cast<int>(Exit::interrupted));
}

extern "C" void on_interrupt(int signal) {
  if (first_signal == 0) first_signal = signal;
  if (const std::string* words = parting_words.load()) end_at_once(*words);
  if (signal == SIGINT) {
    keyboard_signals = keyboard_signals + 1;
    if (keyboard_signals >= 2) ::_exit(static_cast<int>(Exit::interrupted));
  }
}

}  // namespace

void install_interrupt_handlers() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);  // no SA_RESTART: blocking calls end, and their loops look at interrupted()
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    if (signal == SIGHUP && before.sa_handler == SIG_IGN) continue;  // under nohup
    ::sigaction(signal, &action, nullptr);
  }
}

bool interrupted() { return first_signal != 0; }

InterruptEndsAtOnce::InterruptEndsAtOnce(std::string last_words) : last_words_{std::move(last_words)} {
  parting_words.store(&last_words_);
  if (interrupted()) end_at_once(last_words_);  // just before
}

InterruptEndsAtOnce::~InterruptEndsAtOnce() { parting_words.store(nullptr); }

void reset_interrupt() {
  first_signal = 0;
  keyboard_signals = 0;
}

}  // namespace aisp::base
