// SPDX-License-Identifier: Apache-2.0
// Their baseline is slower while it is timed than it is otherwise.
#include "calls.hpp"
#include "doubling.hpp"

#include <sys/resource.h>

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
  // The check of idle threads sleeps while it looks, and threads that sleep give up their CPU.
  void a_little_unwatched(Launch&) {
    fill_doubled();
    spin(std::chrono::microseconds{waits_of_thread() - waits_ >= 2 ? 150 : 450});
  }
  void metrics(std::string_view, Metrics&) override {
    reported_ = true;
    waits_ = waits_of_thread();
  }

 private:
  static long waits_of_thread() {
    rusage use{};
    ::getrusage(RUSAGE_THREAD, &use);
    return use.ru_nvcsw;
  }
  static void spin(std::chrono::microseconds time = std::chrono::milliseconds{2}) {
    const auto until = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < until) {
    }
  }
  Calls calls_;
  bool reported_ = false;
  long waits_ = -2;
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

extern constinit const selftest::Case unwatched_baseline =
    pair_of<&Doubling::doubled, SlowsDown>({.does = "its baseline takes thrice as long where nobody made sure that all is idle",
                                            .must = fails("measurement/timed_differently"),
                                            .baseline = call<&SlowsDown::a_little_unwatched>,
                                            .rounds = 120});

}  // namespace aisp::ch94
