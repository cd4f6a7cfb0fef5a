// SPDX-License-Identifier: Apache-2.0
// They do the measured work in functions of the pair that nobody times.
#include "doubling.cuh"

namespace aisp::ch97 {
namespace {

using namespace selftest;

class Hooks final : public GpuDoubling {
 public:
  explicit Hooks(Setup& setup) : GpuDoubling{setup}, kept_{out_.bytes()} {}
  void nothing(Launch&) {}
  void compute_aside(Launch& launch) {
    doubled(launch);
    kept_.keep(out_, launch.stream);
  }
  void copy(Launch& launch) { kept_.give(out_, launch.stream); }

 private:
  OwnMemory kept_;
};

}  // namespace

extern constinit const selftest::Case gpu_work_in_prepare =
    pair_of<&Hooks::copy>({.does = "computes in prepare, and only copies the result when measured",
                           .must = fails("verify/reference"),
                           .prepare = call<&Hooks::compute_aside>});
extern constinit const selftest::Case gpu_work_in_reset =
    pair_of<&Hooks::nothing>({.does = "does the measured work in reset, and nothing when measured",
                              .must = fails("verify/written"),
                              .reset = call<&GpuDoubling::doubled>});

}  // namespace aisp::ch97
