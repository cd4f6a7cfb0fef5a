// SPDX-License-Identifier: Apache-2.0
// Copying a slice that starts one bf16 after an aligned address. A 16-byte access needs an address that is a multiple of 16, so
// generic code falls back to one element a thread, and 2-byte loads leave memory idle. The aligned 16 bytes that lie around
// each result can be loaded all the same: two neighbours, shifted together in registers, are 16 bytes of the slice.
#include <cuda_bf16.h>
#include <aisp/device/reduce.cuh>
#include <aisp/pair.hpp>

#include <cstdint>

namespace aisp::ch07 {
namespace {

using bf16 = __nv_bfloat16;
constexpr int threads = 256;
constexpr int packet = 8;   // elements in 16 bytes
constexpr int scalars = 8;  // loads in flight of the scalar ladder
constexpr int packets = 4;  // loads in flight of a lane that shifts

// One element a thread, or 16 bytes where both pointers allow it.
template <class T>
__global__ __launch_bounds__(threads) void copy_kernel(const T* in, T* out) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  out[i] = in[i];
}

__global__ __launch_bounds__(threads) void eight_scalars_kernel(const bf16* in, bf16* out) {
  const unsigned first = blockIdx.x * threads * scalars + threadIdx.x;
  bf16 value[scalars];
#pragma unroll
  for (int k = 0; k < scalars; ++k) value[k] = in[first + k * threads];
#pragma unroll
  for (int k = 0; k < scalars; ++k) out[first + k * threads] = value[k];
}

__global__ __launch_bounds__(threads) void aligned_stores_kernel(const bf16* in, uint4* out) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  uint4 result;
  bf16* const value = reinterpret_cast<bf16*>(&result);
#pragma unroll
  for (int k = 0; k < packet; ++k) value[k] = in[i * packet + k];
  out[i] = result;
}

// `in` is the aligned address before the slice, which begins `words` words and `bits` bits after it. A warp loads consecutive
// packets, 32 at a time; each lane needs the first words of its neighbour's, the last lane those of lane 0 at the next time, and
// after the last time lane 0 loads one packet more.
template <int words>
__global__ __launch_bounds__(threads) void funnel_shift_kernel(const uint4* in, unsigned bits, uint4* out) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned first = (blockIdx.x * threads + threadIdx.x - lane) * packets + lane;
  uint4 loaded[packets + 1] = {};
#pragma unroll
  for (int k = 0; k < packets; ++k) loaded[k] = in[first + k * 32];
  if (lane == 0) loaded[packets] = in[first + packets * 32];
#pragma unroll
  for (int k = 0; k < packets; ++k) {
    const uint4 mine = loaded[k], lent = lane == 0 ? loaded[k + 1] : mine;
    const unsigned lends[4] = {lent.x, lent.y, lent.z, lent.w};
    unsigned joined[8] = {mine.x, mine.y, mine.z, mine.w};
#pragma unroll
    for (int word = 0; word <= words; ++word)
      joined[4 + word] = __shfl_sync(device::whole_warp, lends[word], static_cast<int>((lane + 1) % 32));
    const unsigned* const w = joined + words;
    out[first + k * 32] = make_uint4(__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
                                     __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits));
  }
}

class Alignment final : public Workload {
 public:
  explicit Alignment(Setup& setup)
      : count_{setup.scaled(256 << 20, std::size_t{threads} * packets * packet)},
        offset_{setup.size("offset")},
        in_{setup.input<bf16>(count_ + std::size_t{2} * packet, uniform(-1, 1), {.name = "tensor"})},
        out_{setup.output<bf16>(count_, {.name = "slice"})} {}

  Cost cost() const override { return {.bytes = 2 * static_cast<double>(out_.bytes())}; }
  double expected(std::size_t i) const override { return in_.host(i + offset_); }

  void scalar_fallback(Launch& launch) {
    if (offset_ % packet == 0)
      launch(copy_kernel<uint4>, {blocks(packet), threads}, reinterpret_cast<const uint4*>(in_.get() + offset_), packed());
    else scalars_from(launch, offset_);
  }
  void eight_scalars(Launch& launch) { launch(eight_scalars_kernel, {blocks(scalars), threads}, in_.get() + offset_, out_); }
  void aligned_stores(Launch& launch) { launch(aligned_stores_kernel, {blocks(packet), threads}, in_.get() + offset_, packed()); }
  void funnel_shift(Launch& launch) {
    constexpr decltype(&funnel_shift_kernel<0>) kernels[] = {funnel_shift_kernel<0>, funnel_shift_kernel<1>,
                                                             funnel_shift_kernel<2>, funnel_shift_kernel<3>};
    const std::size_t behind = offset_ % packet;
    launch(kernels[behind / 2], {blocks(packet * packets), threads}, reinterpret_cast<const uint4*>(in_.get() + offset_ - behind),
           behind % 2 * 16, packed());
  }
  void aligned_scalars(Launch& launch) { scalars_from(launch, packet); }
  void cuda_memcpy(Launch& launch) {
    check(cudaMemcpyAsync(out_, in_.get() + offset_, out_.bytes(), cudaMemcpyDeviceToDevice, launch.stream));
  }

 private:
  void scalars_from(Launch& launch, std::size_t offset) {
    launch(copy_kernel<bf16>, {blocks(1), threads}, in_.get() + offset, out_);
  }
  uint4* packed() const { return reinterpret_cast<uint4*>(out_.get()); }
  unsigned blocks(std::size_t elements_of_a_thread) const {
    return static_cast<unsigned>(count_ / (threads * elements_of_a_thread));
  }

  std::size_t count_, offset_;  // offset: where the slice begins
  Input<bf16> in_;
  Output<bf16> out_;
};

}  // namespace

extern constinit const Pair alignment{
    .teaches =
        "a view that starts one element off is slow for its few bytes in flight: eight narrow loads mend that, and words "
        "shifted together in registers save their instructions",
    .lesson = "funnel_shift",
    .make = make<Alignment>,
    .baseline = {.name = "scalar_fallback", .run = call<&Alignment::scalar_fallback>},
    .optimized = variants({{.name = "eight_scalars", .run = call<&Alignment::eight_scalars>},
                           {.name = "aligned_stores", .run = call<&Alignment::aligned_stores>},
                           {.name = "funnel_shift", .run = call<&Alignment::funnel_shift>, .gains_over = "eight_scalars"}}),
    // Copies another slice, one that starts at an aligned address: what is left of the baseline's time is its narrow accesses'.
    .controls = variants({{.name = "aligned_scalars", .run = call<&Alignment::aligned_scalars>, .outputs = no_outputs}}),
    .libraries = variants({{.name = "cuda_memcpy", .run = call<&Alignment::cuda_memcpy>}}),
    .bound = Bound::memory,
    .tolerance = exact,
    .sizes = sizes({{.name = "offset", .full = 1, .most = 8, .scales = false}}),
    .sweep = cases({{"offset_1", "offset=1"},
                    {"offset_2", "offset=2"},
                    {"offset_3", "offset=3"},
                    {"offset_4", "offset=4"},
                    {"offset_5", "offset=5"},
                    {"offset_6", "offset=6"},
                    {"offset_7", "offset=7"},
                    {"offset_8", "offset=8"}}),
    .edges = cases({{"offset_8", "offset=8"}}),
};

}  // namespace aisp::ch07
