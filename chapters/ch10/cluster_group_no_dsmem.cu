// SPDX-License-Identifier: Apache-2.0
// GroupNorm of an SDXL feature map (bf16, 32 x 320 x 128 x 128, 32 groups): 1024 groups of 328 KB, each normalized by its own
// mean and variance. Two kernels read the map twice: 1.0 GB instead of 0.67. Four blocks that run at the same time hold a group
// in their registers; the hardware's cluster barrier is all they need to exchange their sums through L2, also on GPUs whose
// clusters cannot reach each other's shared memory. Clusters are not resident: one that ends leaves its place to the next, and no
// round ends with clusters that wait for the others.
#include <aisp/device/cluster.cuh>
#include <aisp/device/matrix.cuh>
#include <aisp/device/reduce.cuh>
#include <aisp/device/vector.cuh>
#include <aisp/pair.hpp>

#include <cuda_bf16.h>

#include <cmath>
#include <vector>

namespace aisp::ch10 {
namespace {

using bf16 = __nv_bfloat16;
using Eight = device::Vector16<unsigned>;  // eight bf16 in four registers, the first in the lower half of a word
constexpr int channels = 320, groups_per_image = 32, channels_per_group = channels / groups_per_image;
constexpr int pixels = 128 * 128, group_elements = channels_per_group * pixels;
constexpr int group_vectors = group_elements / 8, channel_vectors = pixels / 8;
constexpr float epsilon = 1e-5f;

__device__ inline float2 widened(unsigned pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
}

// Mean, and sum of squared deviations from it, of some number of values.
struct Moments {
  float mean, squares;
};

// Both of `count` values.
__device__ inline Moments merge(Moments a, Moments b, float count) {
  const float distance = b.mean - a.mean;
  return {(a.mean + b.mean) / 2, a.squares + b.squares + distance * distance * count / 2};
}

// Over `lanes` neighbouring lanes, each with `count` values.
template <int lanes>
__device__ Moments merge_lanes(Moments moments, float count) {
#pragma unroll
  for (int offset = 1; offset < lanes; offset *= 2, count *= 2)
    moments = merge(moments, {__shfl_xor_sync(~0u, moments.mean, offset), __shfl_xor_sync(~0u, moments.squares, offset)}, count);
  return moments;
}

// Distances from one of the values keep their digits, however far from zero all of them are.
template <int vectors>
__device__ Moments moments_of(const Eight (&values)[vectors]) {
  const float origin = widened(values[0][0]).x;
  float sum = 0, squares = 0;
#pragma unroll
  for (int k = 0; k < vectors; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = widened(values[k][i]);
      const float low = pair.x - origin, high = pair.y - origin;
      sum += low + high;
      squares = fmaf(low, low, fmaf(high, high, squares));
    }
  const float mean = sum / (vectors * 8);
  return {origin + mean, squares - sum * mean};
}

__device__ inline float inverse_deviation(Moments group) { return rsqrtf(group.squares / group_elements + epsilon); }

__device__ inline Eight normalized(const Eight& values, float scale, float shift) {
  Eight result;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = widened(values[i]);
    result[i] = device::narrow_bf16(fmaf(pair.x, scale, shift), fmaf(pair.y, scale, shift));
  }
  return result;
}

constexpr int statistics_threads = 512, statistics_vectors = 5;
constexpr int statistics_rounds = group_vectors / (statistics_threads * statistics_vectors);
static_assert(statistics_rounds * statistics_threads * statistics_vectors == group_vectors);

// One block per group.
__global__ __launch_bounds__(statistics_threads, 2) void statistics_kernel(const Eight* map, Moments* moments) {
  __shared__ float partial[device::largest_block_in_warps];
  const Eight* group = map + static_cast<std::size_t>(blockIdx.x) * group_vectors + threadIdx.x;
  Moments mine[statistics_rounds];
#pragma unroll
  for (int round = 0; round < statistics_rounds; ++round) {
    Eight values[statistics_vectors];
#pragma unroll
    for (int i = 0; i < statistics_vectors; ++i) values[i] = group[(round * statistics_vectors + i) * statistics_threads];
    mine[round] = moments_of(values);
  }
  float mean = 0, squares = 0;
#pragma unroll
  for (const Moments& part : mine) mean += part.mean / statistics_rounds;
  const float whole = device::block_sum(mean, partial) / statistics_threads;
#pragma unroll
  for (const Moments& part : mine) {
    const float distance = part.mean - whole;
    squares += part.squares + distance * distance * (statistics_vectors * 8);
  }
  squares = device::block_sum(squares, partial);
  if (threadIdx.x == 0) moments[blockIdx.x] = {whole, squares};
}

constexpr int normalize_threads = 1024;
// One vector a thread, half a channel a block.
__global__ __launch_bounds__(normalize_threads) void normalize_kernel(const Eight* map, const Moments* moments,
                                                                      const float* gamma, const float* beta, Eight* out) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * normalize_threads + threadIdx.x;
  const unsigned channel_of_image = blockIdx.x / (channel_vectors / normalize_threads);
  const unsigned group = channel_of_image / channels_per_group, channel = channel_of_image % channels;
  const Moments of_group = moments[group];
  const float scale = gamma[channel] * inverse_deviation(of_group);
  out[i] = normalized(map[i], scale, beta[channel] - of_group.mean * scale);
}

constexpr int ranks = 4, threads = 512, warps = threads / 32;
constexpr int slice_vectors = group_vectors / ranks, vectors_per_thread = slice_vectors / threads;
static_assert(vectors_per_thread * threads == slice_vectors && channel_vectors % threads == 0);

// A cluster per group, a block per 80 KB of it, which stay in registers: all of a thread's loads are on their way at once, and
// the other block of the SM works meanwhile.
__global__ __launch_bounds__(threads, 2) void cluster_barrier_l2_kernel(const Eight* map, const float* gamma, const float* beta,
                                                                        Moments* exchange, Eight* out) {
  __shared__ Moments of_warp[warps];
  const int rank = static_cast<int>(device::cluster_rank()), group = static_cast<int>(blockIdx.x) / ranks, t = threadIdx.x;
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * slice_vectors + t;
  Eight values[vectors_per_thread];
#pragma unroll
  for (int k = 0; k < vectors_per_thread; ++k) values[k] = map[first + k * threads];
  const Moments of_lanes = merge_lanes<32>(moments_of(values), vectors_per_thread * 8);
#pragma unroll
  for (Eight& vector : values)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(vector[i]));  // or the compiler keeps them widened too, in 80 registers
  if (t % 32 == 0) of_warp[t / 32] = of_lanes;
  __syncthreads();
  if (t < 32) {
    const Moments of_block = merge_lanes<warps>(of_warp[t % warps], vectors_per_thread * 8 * 32);
    if (t == 0) exchange[blockIdx.x] = of_block;
    device::cluster_arrive();  // releases at cluster scope: the sum is in L2
  } else {
    device::cluster_arrive_relaxed();
  }
  device::cluster_wait();
  const Moments whole = merge_lanes<ranks>(exchange[group * ranks + t % ranks], slice_vectors * 8);
  const float inverse = inverse_deviation(whole);
  const int first_channel = group % groups_per_image * channels_per_group;
#pragma unroll
  for (int k = 0; k < vectors_per_thread; ++k) {
    const int channel = first_channel + (rank * slice_vectors + k * threads) / channel_vectors;
    const float scale = gamma[channel] * inverse;
    out[first + k * threads] = normalized(values[k], scale, beta[channel] - whole.mean * scale);
  }
}

class ClusterGroupNoDsmem final : public Workload {
 public:
  explicit ClusterGroupNoDsmem(Setup& setup)
      : images_{setup.scaled(32)},
        map_{setup.input<bf16>(images_ * channels * pixels, normal(0.5f, 1.5f), {.name = "map"})},
        gamma_{setup.input<float>(channels, uniform(0.5f, 1.5f), {.name = "gamma"})},
        beta_{setup.input<float>(channels, uniform(-1, 1), {.name = "beta"})},
        out_{setup.output<bf16>(images_ * channels * pixels, {.name = "normalized"})},
        moments_{setup.scratch<Moments>(groups())},
        exchange_{setup.scratch<Moments>(groups() * ranks)},
        team_{setup.threads(setup.cpus(), false)} {}

  Cost cost() const override {
    return {.bytes = static_cast<double>(map_.bytes() + gamma_.bytes() + beta_.bytes() + out_.bytes())};
  }

  void compute_reference(Launch&) override {
    reference_.resize(groups());
    team_.run([this](int worker) {
      for (auto g = static_cast<std::size_t>(worker); g < groups(); g += static_cast<std::size_t>(team_.size())) {
        double sum = 0, squares = 0;  // float64 has room enough for the difference of these two
        for (std::size_t i = 0; i < group_elements; ++i) {
          const double value = map_.host(g * group_elements + i);
          sum += value;
          squares += value * value;
        }
        const double mean = sum / group_elements;
        reference_[g] = {mean, 1 / std::sqrt(squares / group_elements - mean * mean + double{epsilon})};
      }
    });
  }
  double expected(std::size_t i) const override {
    const Reference& group = reference_[i / group_elements];
    const std::size_t channel = i / pixels % channels;
    return (map_.host(i) - group.mean) * group.inverse_deviation * gamma_.host(channel) + beta_.host(channel);
  }

  void two_kernels(Launch& launch) {
    launch(statistics_kernel, {static_cast<unsigned>(groups()), statistics_threads}, map(), moments_);
    const auto blocks = static_cast<unsigned>(groups() * group_vectors / normalize_threads);
    launch(normalize_kernel, {blocks, normalize_threads}, map(), moments_, gamma_, beta_, out());
  }
  void cluster_barrier_l2(Launch& launch) {
    const Grid grid{.blocks = static_cast<unsigned>(groups() * ranks), .threads = threads, .cluster = ranks};
    launch(cluster_barrier_l2_kernel, grid, map(), gamma_, beta_, exchange_, out());
  }

 private:
  struct Reference {
    double mean, inverse_deviation;
  };

  std::size_t groups() const { return images_ * groups_per_image; }
  const Eight* map() const { return reinterpret_cast<const Eight*>(map_.get()); }
  Eight* out() const { return reinterpret_cast<Eight*>(out_.get()); }

  std::size_t images_;
  Input<bf16> map_;
  Input<float> gamma_, beta_;
  Output<bf16> out_;
  Scratch<Moments> moments_, exchange_;
  ThreadTeam& team_;
  std::vector<Reference> reference_;
};

}  // namespace

extern constinit const Pair cluster_group_no_dsmem{
    .teaches =
        "co-scheduled blocks and a hardware barrier exchange results through L2 inside one kernel, without remote shared memory",
    .lesson = "cluster_barrier_l2",
    .make = make<ClusterGroupNoDsmem>,
    .baseline = {.name = "two_kernels", .run = call<&ClusterGroupNoDsmem::two_kernels>},
    .optimized = variants({{.name = "cluster_barrier_l2", .run = call<&ClusterGroupNoDsmem::cluster_barrier_l2>}}),
    .bound = Bound::memory,
    .needs = {.min_sm = 90},
};

}  // namespace aisp::ch10
