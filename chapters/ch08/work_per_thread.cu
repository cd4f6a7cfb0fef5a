// SPDX-License-Identifier: Apache-2.0
// A filter of 64 taps over 1024 channels, from tiles in shared memory. With one output a thread each multiply-add loads a sample
// of its own, and loads run at a quarter of the rate of multiply-adds. Eight neighbouring outputs need 71 samples instead of 512,
// kept in registers as they slide by. That pays only if neighbouring threads, now further apart, do not meet in the same banks:
// loads of 16 bytes for four outputs, and for eight, groups of four samples that take turns between two planes of the tile.
#include <aisp/device/reduce.cuh>
#include <aisp/device/vector.cuh>
#include <aisp/pair.hpp>

#include "residency.hpp"

namespace aisp::ch08 {
namespace {

constexpr int taps = 64, threads = 256;
constexpr unsigned length = 65536, pitch = length + taps;  // of a channel: its outputs, and its samples with their past

__constant__ float coefficients[taps];

// Tiles are cut into units of `width` samples, which one load moves. Unit u lies in plane u % planes: when a thread's outputs are
// `planes` units, the threads' loads of one kind go to neighbouring units of one plane.
template <unsigned outputs, unsigned width, unsigned planes>
struct Tile {
  static constexpr unsigned units = (threads * outputs + taps) / width;
  // Planes begin 128 / planes bytes further on in the banks than the one before, so that filling them is free of conflicts, too.
  static constexpr unsigned plane = planes == 1 ? units : (units / planes + 7) / 8 * 8 + 8 / planes;
  static constexpr unsigned own = outputs / width;  // units between neighbouring threads
  static_assert(planes == 1 || planes == own);
  using Unit = device::Vector<float, static_cast<int>(width)>;
  static constexpr std::size_t bytes = sizeof(Unit) * plane * planes;

  Unit* values;
  __device__ Unit& operator[](unsigned unit) const { return values[unit % planes * plane + unit / planes]; }
  // Unit `k` from the calling thread's first one on.
  __device__ const Unit& ahead(unsigned k) const {
    return planes == 1 ? values[threadIdx.x * own + k] : values[k % planes * plane + threadIdx.x + k / planes];
  }
};

// Writes the thread's consecutive outputs. Of eight, two neighbouring lanes exchange halves, so that each store fills sectors.
template <int outputs>
__device__ __forceinline__ void store(float* to, const float (&sums)[outputs]) {
  if constexpr (outputs == 8) {
    const bool odd = threadIdx.x % 2 != 0;
    float4 mine = odd ? make_float4(sums[4], sums[5], sums[6], sums[7]) : make_float4(sums[0], sums[1], sums[2], sums[3]);
    float4 theirs = odd ? make_float4(sums[0], sums[1], sums[2], sums[3]) : make_float4(sums[4], sums[5], sums[6], sums[7]);
    theirs.x = __shfl_xor_sync(device::whole_warp, theirs.x, 1);
    theirs.y = __shfl_xor_sync(device::whole_warp, theirs.y, 1);
    theirs.z = __shfl_xor_sync(device::whole_warp, theirs.z, 1);
    theirs.w = __shfl_xor_sync(device::whole_warp, theirs.w, 1);
    auto* const pair = reinterpret_cast<float4*>(to - (odd ? 8 : 0));  // the two lanes' 16 outputs
    pair[odd ? 1 : 0] = odd ? theirs : mine;
    pair[odd ? 3 : 2] = odd ? mine : theirs;
  } else if constexpr (outputs % 4 == 0) {
#pragma unroll
    for (int k = 0; k < outputs; k += 4)  // by name, or the compiler splits some of these stores again
      __stwb(reinterpret_cast<float4*>(to + k), make_float4(sums[k], sums[k + 1], sums[k + 2], sums[k + 3]));
  } else if constexpr (outputs == 2) {
    __stwb(reinterpret_cast<float2*>(to), make_float2(sums[0], sums[1]));
  } else {
    *to = sums[0];
  }
}

// out[n] is the sum of coefficients[k] * in[n + k], in the order of k.
template <int outputs, int width, int planes>
__global__ __launch_bounds__(threads) void fir_kernel(const float* in, float* out) {
  using Tiles = Tile<outputs, width, planes>;
  using Unit = typename Tiles::Unit;
  extern __shared__ float shared[];
  const Tiles tile{reinterpret_cast<Unit*>(shared)};
  const std::size_t first = std::size_t{blockIdx.x} * threads * outputs;
  const auto* const from = reinterpret_cast<const Unit*>(in + std::size_t{blockIdx.y} * pitch + first);
#pragma unroll
  for (unsigned i = threadIdx.x; i < Tiles::units; i += threads) tile[i] = from[i];
  __syncthreads();

  float window[outputs + taps], sums[outputs] = {};  // registers, for every index is known when this is compiled
  const auto slide = [&](int k) {
    const auto& unit = tile.ahead(k / width);
    if constexpr (width == 1 && outputs > 1) {
      window[k] = static_cast<const volatile Unit&>(unit).values[0];  // volatile, or the compiler makes 16-byte loads of four
    } else {
#pragma unroll
      for (int i = 0; i < width; ++i) window[k + i] = unit[i];
    }
  };
#pragma unroll
  for (int k = 0; k < outputs; k += width) slide(k);
#pragma unroll
  for (int k = 0; k < taps; k += width) {
    slide(outputs + k);
#pragma unroll
    for (int i = 0; i < width; ++i)
#pragma unroll
      for (int o = 0; o < outputs; ++o) sums[o] = fmaf(coefficients[k + i], window[k + i + o], sums[o]);
  }
  store(out + std::size_t{blockIdx.y} * length + first + threadIdx.x * outputs, sums);
}

class WorkPerThread final : public Workload {
 public:
  explicit WorkPerThread(Setup& setup)
      : swept_{setup.size("outputs")},
        channels_{setup.scaled(1024)},
        in_{setup.input<float>(channels_ * pitch, uniform(-1, 1), {.name = "samples"})},
        taps_{setup.input<float>(taps, uniform(-1, 1), {.name = "taps", .constant = true})},
        out_{setup.output<float>(channels_ * length, {.name = "filtered"})} {}

  Cost cost() const override {
    return {.flops = 2.0 * taps * static_cast<double>(out_.size()), .bytes = static_cast<double>(in_.bytes() + out_.bytes())};
  }
  double expected(std::size_t index) const override {
    const std::size_t first = index / length * pitch + index % length;
    double sum = 0;
    for (std::size_t k = 0; k < taps; ++k) sum += taps_.host(k) * in_.host(first + k);
    return sum;
  }
  void metrics(std::string_view, Metrics& metrics) override { launched_.report(metrics); }

  // A filter's taps stay the same over all its calls.
  void store_taps(Launch& launch) {
    check(cudaMemcpyToSymbolAsync(coefficients, taps_.get(), taps_.bytes(), 0, cudaMemcpyDeviceToDevice, launch.stream));
  }
  void one_output(Launch& launch) { filter<1, 1, 1>(launch); }
  // Single samples at a distance of four: four threads meet in each bank.
  void four_outputs_scalar(Launch& launch) { filter<4, 1, 1>(launch); }
  void four_outputs(Launch& launch) { filter<4, 4, 1>(launch); }
  void eight_outputs(Launch& launch) { filter<8, 4, 2>(launch); }
  void swept_outputs(Launch& launch) {
    switch (swept_) {
      case 1: return filter<1, 1, 1>(launch);
      case 2: return filter<2, 2, 1>(launch);
      case 4: return filter<4, 4, 1>(launch);
      case 8: return filter<8, 4, 2>(launch);
      case 16: return filter<16, 4, 4>(launch);
      default: throw Unsupported{"kernels are compiled for 1, 2, 4, 8 and 16 outputs a thread"};
    }
  }

 private:
  template <int outputs, int width, int planes>
  void filter(Launch& launch) {
    const dim3 blocks{length / (threads * outputs), static_cast<unsigned>(channels_)};
    launched_.launch(launch, fir_kernel<outputs, width, planes>, {blocks, threads, Tile<outputs, width, planes>::bytes}, in_,
                     out_);
  }

  std::size_t swept_, channels_;
  Input<float> in_, taps_;
  Output<float> out_;
  Residency launched_;
};

constexpr Method store_taps = call<&WorkPerThread::store_taps>;

}  // namespace

extern constinit const Pair work_per_thread{
    .teaches =
        "neighbouring outputs in one thread share their inputs; it pays only if the threads' windows do not meet in one bank",
    .lesson = "four_outputs",
    .make = make<WorkPerThread>,
    .baseline = {.name = "one_output", .run = call<&WorkPerThread::one_output>, .prepare = store_taps},
    .optimized = variants({{.name = "four_outputs", .run = call<&WorkPerThread::four_outputs>, .prepare = store_taps},
                           {.name = "eight_outputs", .run = call<&WorkPerThread::eight_outputs>, .prepare = store_taps}}),
    .controls =
        variants({{.name = "four_outputs_scalar", .run = call<&WorkPerThread::four_outputs_scalar>, .prepare = store_taps},
                  {.name = "swept_outputs", .run = call<&WorkPerThread::swept_outputs>, .prepare = store_taps}}),
    .bound = Bound::compute,
    .tolerance = reduction_of(taps),
    .sizes = sizes({{.name = "outputs", .full = 16, .most = 16, .scales = false}}),  // a thread, of the control swept_outputs
    .sweep = cases({{"outputs_1", "outputs=1"},
                    {"outputs_2", "outputs=2"},
                    {"outputs_4", "outputs=4"},
                    {"outputs_8", "outputs=8"},
                    {"outputs_16", "outputs=16"}}),
    .edges = cases({{"outputs_1", "outputs=1"}, {"outputs_7", "outputs=7"}}),
};

}  // namespace aisp::ch08
