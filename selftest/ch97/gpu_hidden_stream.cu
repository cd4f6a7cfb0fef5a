// SPDX-License-Identifier: Apache-2.0
// Computes on a stream of its own and does not join it.
#include "../doubling.cuh"

namespace aisp::ch97 {
namespace {

class GpuHiddenStream final : public selftest::GpuDoubling {
 public:
  void baseline(Launch& launch) { slow(launch); }
  explicit GpuHiddenStream(Setup& setup) : GpuDoubling{setup}, hidden_{setup.stream()} {}
  void optimized(Launch&) {
    spin(20'000'000, hidden_);
    double_on(hidden_, count_);
  }

 private:
  cudaStream_t hidden_;
};

}  // namespace

extern constinit const selftest::Case gpu_hidden_stream{
    .expected = {selftest::Ends::failed, "verify", "finished"},
    .pair =
        {
            .teaches = "computes on a stream of its own and does not join it",
            .make = make<GpuHiddenStream>,
            .baseline = {"slow", call<&GpuHiddenStream::baseline>},
            .optimized = variants({{"doubled", call<&GpuHiddenStream::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
