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
  // By less than the difference that is allowed between a verified and a timed execution.
  void a_little_for_good(Launch&) {
    fill_doubled();
    calls_.timed();
    spin(std::chrono::microseconds{calls_.count() < 8 ? 150 : 450});
  }
  void a_little_once_reported(Launch&) {
    fill_doubled();
    spin(std::chrono::microseconds{reported_ ? 450 : 150});
  }
  void metrics(std::string_view, Metrics&) override { reported_ = true; }

 private:
  static void spin(std::chrono::microseconds time = std::chrono::milliseconds{2}) {
    const auto until = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < until) {
    }
  }
  Calls calls_;
  bool reported_ = false;
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
extern constinit const selftest::Case tired_baseline =
    pair_of<&Doubling::doubled, SlowsDown>({.does = "its baseline takes thrice as long from its eighth call on",
                                            .must = timed_otherwise,
                                            .baseline = call<&SlowsDown::a_little_for_good>});
extern constinit const selftest::Case reported_baseline =
    pair_of<&Doubling::doubled, SlowsDown>({.does = "its baseline takes thrice as long once metrics have been asked for",
                                            .must = timed_otherwise,
                                            .baseline = call<&SlowsDown::a_little_once_reported>});

}  // namespace aisp::ch94
