// SPDX-License-Identifier: Apache-2.0
// The baseline takes 64 MiB of device memory in each run and gives it back: afterwards nobody can tell, but its peak is higher.
#include "../doubling.cuh"

namespace aisp::ch89 {
namespace {

class Allocates final : public selftest::GpuDoubling {
 public:
  explicit Allocates(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) {
    const Range range{launch, "with memory of its own"};
    const selftest::OwnMemory own{std::size_t{64} << 20};
    slow(launch);
    launch.mark("queued");
  }
  void optimized(Launch& launch) { doubled(launch); }
};

}  // namespace

extern constinit const Pair allocates{
    .teaches = "takes device memory in each run and gives it back",
    .make = make<Allocates>,
    .baseline = {"slow", call<&Allocates::baseline>},
    .optimized = variants({{"doubled", call<&Allocates::optimized>}}),
    .tolerance = exact,
    .start = Start::immediate,
};

}  // namespace aisp::ch89
