// SPDX-License-Identifier: Apache-2.0
// Their baseline is slower while it is timed than it is otherwise.
#include "calls.hpp"
#include "doubling.cuh"

#include <chrono>
#include <thread>

namespace aisp::ch97 {
namespace {

using namespace selftest;

class SlowsDown final : public GpuDoubling {
 public:
  using GpuDoubling::GpuDoubling;
  void spinning(Launch& launch) {
    doubled(launch);
    if (calls_.timed()) spin(4'000'000, launch.stream);
  }
  void repeating(Launch& launch) {
    for (int i = calls_.timed() ? 500 : 1; i > 0; --i) doubled(launch);
  }
  void asleep(Launch& launch) {
    doubled(launch);
    if (calls_.timed()) std::this_thread::sleep_for(std::chrono::milliseconds{2});
    doubled(launch);
  }

 private:
  Calls calls_;
};

}  // namespace

extern constinit const selftest::Case gpu_spinning_baseline =
    pair_of<&GpuDoubling::doubled, SlowsDown>({.does = "its baseline spins for 2 ms in calls that are timed",
                                               .must = timed_otherwise,
                                               .baseline = call<&SlowsDown::spinning>});
extern constinit const selftest::Case gpu_repeating_baseline =
    pair_of<&GpuDoubling::doubled, SlowsDown>({.does = "its baseline does its work 500 times over in calls that are timed",
                                               .must = timed_otherwise,
                                               .baseline = call<&SlowsDown::repeating>});
extern constinit const selftest::Case gpu_sleeping_baseline =
    pair_of<&GpuDoubling::doubled, SlowsDown>({.does = "its baseline sleeps between two launches in calls that are timed",
                                               .must = timed_otherwise,
                                               .baseline = call<&SlowsDown::asleep>,
                                               .start = Start::immediate});

}  // namespace aisp::ch97
