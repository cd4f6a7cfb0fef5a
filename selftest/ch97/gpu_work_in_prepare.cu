// SPDX-License-Identifier: Apache-2.0
// Computes in prepare, and only copies the result when measured.
#include "../doubling.cuh"

namespace aisp::ch97 {
namespace {

class GpuWorkInPrepare final : public selftest::GpuDoubling {
 public:
  void baseline(Launch& launch) { slow(launch); }
  explicit GpuWorkInPrepare(Setup& setup) : GpuDoubling{setup}, kept_{out_.bytes()} {}
  void prepare(Launch& launch) {
    doubled(launch);
    kept_.keep(out_, launch.stream);
  }
  void optimized(Launch& launch) { kept_.give(out_, launch.stream); }

 private:
  selftest::OwnMemory kept_;
};

}  // namespace

extern constinit const selftest::Case gpu_work_in_prepare{
    .expected = {selftest::Ends::failed, "verify", "reference"},
    .pair =
        {
            .teaches = "computes in prepare, and only copies the result when measured",
            .make = make<GpuWorkInPrepare>,
            .baseline = {"slow", call<&GpuWorkInPrepare::baseline>},
            .optimized = variants({{"doubled", call<&GpuWorkInPrepare::optimized>, call<&GpuWorkInPrepare::prepare>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
