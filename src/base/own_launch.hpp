// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>

namespace aisp::base {

// While it lives, the calling thread launches for the harness. A recorder of GPU work tells these kernels by it, because a pair
// may give its kernels any name.
class OwnLaunch {
 public:
  OwnLaunch() {
    in_effect_ = true;
    tell(true);
  }
  ~OwnLaunch() {
    tell(false);
    in_effect_ = false;
  }
  OwnLaunch(const OwnLaunch&) = delete;
  OwnLaunch& operator=(const OwnLaunch&) = delete;

  static bool in_effect() { return in_effect_; }
  // Calls `told` where a launch of the harness begins and where it has ended; null for no longer.
  static void watch_by(void (*told)(bool begins)) { watcher_ = told; }

 private:
  static void tell(bool begins) {
    if (void (*const watcher)(bool) = watcher_) watcher(begins);
  }

  static inline thread_local bool in_effect_ = false;
  static inline std::atomic<void (*)(bool)> watcher_{nullptr};
};

}  // namespace aisp::base
