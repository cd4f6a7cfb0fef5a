// SPDX-License-Identifier: Apache-2.0
// A round takes 25 ms, whatever the machine: two hundred of them do not fit into a short stage.
#include "../doubling.hpp"

namespace aisp::ch88 {
namespace {

class Deliberate final : public fixtures::Doubling {
 public:
  explicit Deliberate(Setup& setup) : Doubling{setup} {}
  void baseline(Launch&) { sleep_and_double(15); }
  void optimized(Launch&) { sleep_and_double(10); }

 private:
  void sleep_and_double(int milliseconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds{milliseconds});
    fill_doubled();
  }
};

}  // namespace

extern constinit const Pair deliberate{
    .teaches = "takes its time",
    .make = make<Deliberate>,
    .baseline = {"slow", call<&Deliberate::baseline>},
    .optimized = variants({{"quick", call<&Deliberate::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch88
