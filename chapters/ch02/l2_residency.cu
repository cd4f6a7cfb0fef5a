// SPDX-License-Identifier: Apache-2.0
// Weights become FP8 with one scale a matrix: one pass finds the largest magnitude, a second divides by it and casts. Done for
// all matrices before the second pass begins, each value comes from memory twice. Matrix by matrix, the second pass finds what
// the first has just read in L2; the kernels are the same, only their order changes. What was read last should be there most
// surely: reverse_second_pass walks backward, and its results leave L2 first.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <aisp/device/reduce.cuh>
#include <aisp/device/vector.cuh>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

namespace aisp::ch02 {
namespace {

using bf16 = __nv_bfloat16;
using fp8 = __nv_fp8_e4m3;
using Wide = device::Vector16<bf16>;
using Narrow = device::Vector<fp8, 8>;

constexpr std::size_t columns = 4096, all_rows = 131072;  // 1 GiB
constexpr int threads = 512, loads = 4;                   // of 16 bytes
constexpr unsigned pieces_per_block = threads * loads;
constexpr float largest = 448;  // of E4M3

// Magnitudes are not negative, so they are ordered as their bits are.
__global__ __launch_bounds__(threads) void absmax_kernel(const Wide* in, unsigned* absmax) {
  __shared__ unsigned shared[device::largest_block_in_warps];
  const Wide* const from = in + blockIdx.x * pieces_per_block + threadIdx.x;
  Wide pieces[loads];
#pragma unroll
  for (int k = 0; k < loads; ++k) pieces[k] = from[k * threads];
  unsigned most = 0;
#pragma unroll
  for (const Wide& piece : pieces)
#pragma unroll
    for (int i = 0; i < Wide::size(); ++i) most = max(most, __bfloat16_as_ushort(piece[i]) & 0x7FFFu);
  most = device::block_max(most, 0u, shared);
  if (threadIdx.x == 0) atomicMax(absmax, most);
}

__host__ __device__ float inverse_scale(unsigned absmax_bits) {
  return largest / __bfloat162float(__ushort_as_bfloat16(static_cast<unsigned short>(absmax_bits)));
}

template <bool backward>
__global__ __launch_bounds__(threads) void cast_kernel(const Wide* in, const unsigned* absmax, Narrow* out, float* scale) {
  const unsigned block = backward ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  const std::size_t first = block * pieces_per_block + threadIdx.x;
  const float inverse = inverse_scale(*absmax);
  Wide pieces[loads];
#pragma unroll
  for (int k = 0; k < loads; ++k) pieces[k] = in[first + k * threads];
#pragma unroll
  for (int k = 0; k < loads; ++k) {
    Narrow narrow;
#pragma unroll
    for (int i = 0; i < Wide::size(); ++i) narrow[i] = fp8{__bfloat162float(pieces[k][i]) * inverse};
    if constexpr (backward) device::store_streaming(out + first + k * threads, narrow);
    else out[first + k * threads] = narrow;
  }
  if (block == 0 && threadIdx.x == 0) *scale = 1 / inverse;
}

class L2Residency final : public Workload {
 public:
  explicit L2Residency(Setup& setup)
      : elements_{setup.size("rows") * columns},
        matrices_{std::max<std::size_t>(setup.scaled(all_rows) / setup.size("rows"), 1)},
        in_{setup.input<bf16>(matrices_ * elements_, normal(0, 0.02f), {.name = "weights"})},
        out_{setup.output<fp8>(matrices_ * elements_, {.name = "weights in FP8"})},
        scales_{setup.output<float>(matrices_, {.name = "scales"})},
        absmax_{setup.scratch<unsigned>(matrices_, {.name = "largest magnitudes"})},
        team_{setup.threads(std::min(setup.cpus(), 16), false)},
        expected_absmax_(matrices_) {}

  // Each byte once.
  Cost cost() const override { return {.bytes = static_cast<double>(in_.bytes() + out_.bytes() + scales_.bytes())}; }

  void compute_reference(Launch&) override {
    for (std::size_t m = 0; m < matrices_; ++m) {
      std::vector<double> most(static_cast<std::size_t>(team_.size()));
      team_.run([&](int worker) {
        const auto w = static_cast<std::size_t>(worker);
        double mine = 0;
        for (std::size_t i = elements_ * w / most.size(); i < elements_ * (w + 1) / most.size(); ++i)
          mine = std::max(mine, std::abs(in_.host(m * elements_ + i)));
        most[w] = mine;
      });
      const auto found = static_cast<float>(*std::max_element(most.begin(), most.end()));
      expected_absmax_[m] = __bfloat16_as_ushort(__float2bfloat16_rn(found));
    }
  }
  double expected_output(int output, std::size_t index) const override {
    const float inverse = inverse_scale(expected_absmax_[output == 0 ? index / elements_ : index]);
    if (output == 1) return static_cast<double>(1 / inverse);
    return static_cast<double>(static_cast<float>(fp8{static_cast<float>(in_.host(index)) * inverse}));
  }

  void pass_by_pass(Launch& launch) {
    clear(launch);
    for (std::size_t m = 0; m < matrices_; ++m) find_absmax(launch, m);
    for (std::size_t m = 0; m < matrices_; ++m) cast<false>(launch, m);
  }
  void tensor_by_tensor(Launch& launch) { one_after_the_other<false>(launch); }
  void reverse_second_pass(Launch& launch) { one_after_the_other<true>(launch); }

 private:
  template <bool backward>
  void one_after_the_other(Launch& launch) {
    clear(launch);
    for (std::size_t m = 0; m < matrices_; ++m) {
      find_absmax(launch, m);
      cast<backward>(launch, m);
    }
  }
  void clear(Launch& launch) { check(cudaMemsetAsync(absmax_, 0, absmax_.bytes(), launch.stream)); }
  unsigned blocks() const { return static_cast<unsigned>(elements_ / Wide::size() / pieces_per_block); }
  const Wide* matrix(std::size_t m) const { return reinterpret_cast<const Wide*>(in_ + m * elements_); }
  void find_absmax(Launch& launch, std::size_t m) {
    absmax_kernel<<<blocks(), threads, 0, launch.stream>>>(matrix(m), absmax_ + m);
    check(cudaGetLastError());
  }
  template <bool backward>
  void cast(Launch& launch, std::size_t m) {
    cast_kernel<backward><<<blocks(), threads, 0, launch.stream>>>(matrix(m), absmax_ + m,
                                                                   reinterpret_cast<Narrow*>(out_ + m * elements_), scales_ + m);
    check(cudaGetLastError());
  }

  std::size_t elements_, matrices_;  // elements of one matrix
  Input<bf16> in_;
  Output<fp8> out_;
  Output<float> scales_;
  Scratch<unsigned> absmax_;
  ThreadTeam& team_;
  std::vector<unsigned> expected_absmax_;  // bits of bf16
};

}  // namespace

extern constinit const Pair l2_residency{
    .teaches = "what is consumed while it sits in L2 does not come from memory again: only the order of the work changes",
    .lesson = "tensor_by_tensor",
    .make = make<L2Residency>,
    .baseline = {.name = "pass_by_pass", .run = call<&L2Residency::pass_by_pass>},
    .optimized = variants({{.name = "tensor_by_tensor", .run = call<&L2Residency::tensor_by_tensor>},
                           {.name = "reverse_second_pass", .run = call<&L2Residency::reverse_second_pass>}}),
    .bound = Bound::memory,
    .tolerance = exact,
    // A matrix of 24 MiB stays in the 60 MB of an H200's L2 until it is read again.
    .sizes = sizes({{.name = "rows", .full = 3072, .multiple = 256, .scales = false}}),
    .sweep = cases({{"mib_8", "rows=1024"},
                    {"mib_16", "rows=2048"},
                    {"mib_24", "rows=3072"},
                    {"mib_32", "rows=4096"},
                    {"mib_48", "rows=6144"},
                    {"mib_64", "rows=8192"}}),
};

}  // namespace aisp::ch02
