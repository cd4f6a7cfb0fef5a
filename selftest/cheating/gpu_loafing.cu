// SPDX-License-Identifier: Apache-2.0
// They work while they are checked, and not, or badly, while they are timed.
#include "calls.hpp"
#include "doubling.cuh"

#include <atomic>
#include <chrono>
#include <limits>

namespace aisp::ch97 {
namespace {

using namespace selftest;

// Works only where the output holds bytes that outputs are filled with before they are verified.
__global__ void poisoned_kernel(const float* in, float* out, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const unsigned bits = __float_as_uint(out[i]);
  if (bits == 0xFBFBFBFBu || bits == 0x7B7B7B7Bu) out[i] = 2 * in[i];
}

class Loafs final : public GpuDoubling {
 public:
  using GpuDoubling::GpuDoubling;
  void by_count(Launch& launch) {
    if (!calls_.timed()) doubled(launch);
  }
  void by_half(Launch& launch) { double_on(launch.stream, calls_.timed() ? count_ / 2 : count_); }
  void by_one_element(Launch& launch) {
    doubled(launch);
    if (calls_.timed()) set(count_ / 3, 5, 1, launch.stream);
  }
  void by_nan(Launch& launch) {
    doubled(launch);
    if (calls_.timed()) set(count_ / 2, std::numeric_limits<float>::quiet_NaN(), 1, launch.stream);
  }
  // A race that strikes in one run of many looks like this.
  void once(Launch& launch) {
    calls_.timed();
    if (calls_.count() % 40 != 9) doubled(launch);
  }
  // Within its tolerance, but not what it computes when it is checked.
  void behind_the_end(Launch& launch) {
    doubled(launch);
    if (calls_.timed()) set(count_, 1, 1, launch.stream);
  }
  void on_the_inputs(Launch& launch) {
    doubled(launch);
    if (calls_.timed()) check(cudaMemsetAsync(const_cast<float*>(in_.get()) + 7, 0, sizeof(float), launch.stream));
  }
  void without_known_poison(Launch& launch) { poisoned_kernel<<<blocks(), block_threads, 0, launch.stream>>>(in_, out_, count_); }
  void by_the_clock(Launch& launch) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    if (std::chrono::duration_cast<std::chrono::microseconds>(now).count() / 100 % 2 == 0) doubled(launch);
  }
  // The gate holds the stream back where a sample is timed.
  void behind_a_gate(Launch& launch) {
    const bool idle = cudaStreamQuery(launch.stream) == cudaSuccess;
    cudaGetLastError();
    if (idle) doubled(launch);
  }

 private:
  Calls calls_;
};

// Who is asked for the reference has been checked, and is timed next.
class HearsTheReference final : public GpuDoubling {
 public:
  using GpuDoubling::GpuDoubling;
  double expected(std::size_t index) const override {
    asked_ = ran_.load();
    return GpuDoubling::expected(index);
  }
  void run(Launch& launch) {
    ran_ = true;
    if (!asked_) doubled(launch);
  }

 private:
  std::atomic<bool> ran_{false};
  mutable std::atomic<bool> asked_{false};
};

}  // namespace

extern constinit const selftest::Case gpu_count_calls =
    pair_of<&Loafs::by_count>({.does = "counts its calls and does nothing in those that are timed", .must = wrong_when_timed});
extern constinit const selftest::Case gpu_half_when_timed =
    pair_of<&Loafs::by_half>({.does = "does half of the work in calls that are timed", .must = wrong_when_timed});
extern constinit const selftest::Case gpu_one_element_when_timed = pair_of<&Loafs::by_one_element>(
    {.does = "gets one element of four million wrong in calls that are timed", .must = wrong_when_timed});
extern constinit const selftest::Case gpu_nan_when_timed =
    pair_of<&Loafs::by_nan>({.does = "writes a NaN in calls that are timed", .must = wrong_when_timed});
extern constinit const selftest::Case gpu_wrong_once =
    pair_of<&Loafs::once>({.does = "leaves the work out in a single call, as a race would", .must = wrong_when_timed});
extern constinit const selftest::Case gpu_out_of_bounds_when_timed = pair_of<&Loafs::behind_the_end>(
    {.does = "writes behind its output in calls that are timed", .must = fails("measurement/red_zones", "reverify/red_zones")});
extern constinit const selftest::Case gpu_modified_inputs_when_timed =
    pair_of<&Loafs::on_the_inputs>({.does = "changes its input in calls that are timed",
                                    .must = fails("measurement/inputs_unchanged", "measurement/timed_samples")});
extern constinit const selftest::Case gpu_poison_known = pair_of<&Loafs::without_known_poison>(
    {.does = "works only where the output holds the bytes that verification fills it with", .must = unwritten_at_times});
extern constinit const selftest::Case gpu_every_other_moment =
    pair_of<&Loafs::by_the_clock>({.does = "does nothing in every other tenth of a millisecond", .must = unwritten_at_times});
extern constinit const selftest::Case gpu_gate_seen =
    pair_of<&Loafs::behind_a_gate>({.does = "does nothing where its stream is held back", .must = unwritten_at_times});
extern constinit const selftest::Case gpu_reference_asked =
    pair_of<&HearsTheReference::run>({.does = "does nothing after it was asked for the reference",
                                      .must = fails("measurement/timed_samples", "warmup/timed_samples", "verify/written")});

}  // namespace aisp::ch97
