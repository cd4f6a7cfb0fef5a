// SPDX-License-Identifier: Apache-2.0
// Their baseline is slower while it is timed than it is otherwise.
#include "calls.hpp"
#include "doubling.hpp"

namespace aisp::ch94 {
namespace {

using namespace selftest;

class SlowsDown final : public Doubling {
 public:
  using Doubling::Doubling;
  void asleep(Launch&) {
    fill_doubled();
    if (calls_.timed()) std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
  void awake(Launch&) {
    fill_doubled();
    if (calls_.timed()) spin();
  }
  // Slow from then on, also when it is verified again.
  void for_good(Launch&) {
    fill_doubled();
    calls_.timed();
    if (calls_.count() >= 8) spin();
  }

 private:
  static void spin() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds{2};
    while (std::chrono::steady_clock::now() < until) {
    }
  }
  Calls calls_;
};

}  // namespace

extern constinit const selftest::Case sleeping_baseline =
    pair_of<&Doubling::doubled, SlowsDown>({.does = "its baseline sleeps for 2 ms in calls that are timed",
                                            .must = timed_otherwise,
                                            .baseline = call<&SlowsDown::asleep>});
extern constinit const selftest::Case spinning_baseline =
    pair_of<&Doubling::doubled, SlowsDown>({.does = "its baseline idles for 2 ms in calls that are timed",
                                            .must = timed_otherwise,
                                            .baseline = call<&SlowsDown::awake>});
extern constinit const selftest::Case tiring_baseline =
    pair_of<&Doubling::doubled, SlowsDown>({.does = "its baseline idles for 2 ms from its eighth call on",
                                            .must = timed_otherwise,
                                            .baseline = call<&SlowsDown::for_good>});

}  // namespace aisp::ch94
