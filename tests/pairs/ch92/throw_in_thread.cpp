// SPDX-License-Identifier: Apache-2.0
// Throws in a thread of its own, which ends the process.
#include "../doubling.hpp"

#include <stdexcept>
#include <thread>

namespace aisp::ch92 {
namespace {

class ThrowInThread final : public fixtures::Doubling {
 public:
  explicit ThrowInThread(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) {
    std::thread{[] { throw std::runtime_error{"lost in a thread"}; }}.join();
  }
};

}  // namespace

extern constinit const Pair throw_in_thread{
    .teaches = "throws in a thread of its own, which ends the process",
    .make = make<ThrowInThread>,
    .baseline = {"slow", call<&ThrowInThread::baseline>},
    .optimized = variants({{"doubled", call<&ThrowInThread::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch92
