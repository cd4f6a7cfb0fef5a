// SPDX-License-Identifier: Apache-2.0
// Forgets the stream argument of its kernels.
#include "../doubling.cuh"

namespace aisp::ch97 {
namespace {

class GpuDefaultStream final : public selftest::GpuDoubling {
 public:
  explicit GpuDefaultStream(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) {
    spin(20'000'000, nullptr);
    double_on(nullptr, count_);
  }
};

}  // namespace

extern constinit const selftest::Case gpu_default_stream{
    .expected = {selftest::Ends::failed, "verify", "finished"},
    .pair =
        {
            .teaches = "forgets the stream argument of its kernels",
            .make = make<GpuDefaultStream>,
            .baseline = {"slow", call<&GpuDefaultStream::baseline>},
            .optimized = variants({{"doubled", call<&GpuDefaultStream::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
