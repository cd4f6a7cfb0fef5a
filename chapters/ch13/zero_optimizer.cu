// SPDX-License-Identifier: Apache-2.0
// Data-parallel AdamW over gradients of two GPUs or more. After an all-reduce every GPU has the same sums, and all make the same
// update of 28 bytes a parameter. Reduce-scatter, an update of the own share and all-gather send the same bytes, and each
// parameter is updated once, by the GPU that alone keeps its moments. In buckets, the update of one runs while the next one is
// under way.
#include <cuda_bf16.h>
#include <aisp/device/vector.cuh>
#include <aisp/libraries/nccl.hpp>
#include <aisp/pair.hpp>
#include <aisp/peer.hpp>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

namespace aisp::ch13 {
namespace {

using bf16 = __nv_bfloat16;
constexpr int threads = 256;
constexpr std::size_t piece = 4;  // parameters of a thread: 16 bytes of each moment
constexpr float rate = 0.05f, beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f, weight_decay = 0.1f;
constexpr int step_number = 100;  // for the corrections of the biases

template <class T>
struct Parameter {
  T master, first, second;  // the moments
};

// One AdamW step; `gradient` is the mean over the GPUs.
template <class T>
__host__ __device__ Parameter<T> updated(Parameter<T> p, T gradient, T correction1, T correction2) {
  p.first = T(beta1) * p.first + (1 - T(beta1)) * gradient;
  p.second = T(beta2) * p.second + (1 - T(beta2)) * gradient * gradient;
  const T direction = p.first * correction1 / (sqrt(p.second * correction2) + T(epsilon));
  p.master -= T(rate) * (direction + T(weight_decay) * p.master);
  return p;
}

// The state before the step: the same on all GPUs, and in all runs.
__host__ __device__ inline Parameter<float> initial(std::size_t index) {
  const std::uint64_t bits = random_bits(13, index);
  const auto unit = [bits](int shift) { return static_cast<float>(bits >> shift & 0xFFFFF) * 0x1p-20f; };
  return {2 * unit(0) - 1, 0.02f * (unit(20) - 0.5f), 1e-4f * (unit(40) + 0.25f)};
}

struct State {
  float *master, *first, *second;
};

// Shares of the state: of each bucket every rank keeps an equal one, in the order of ranks. No ranks: each GPU keeps all of it.
struct Ownership {
  std::size_t count, bucket, ranks;
  __device__ bool has(std::size_t rank, std::size_t parameter) const {
    const std::size_t first = ranks == 0 ? 0 : parameter / bucket * bucket;
    return ranks == 0 || (parameter - first) / (min(bucket, count - first) / ranks) == rank;
  }
};

// State that the GPU does not keep is NaN.
__global__ __launch_bounds__(threads) void initialize_kernel(State state, Ownership ownership, std::size_t rank) {
  for (std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x; i < ownership.count;
       i += std::size_t{gridDim.x} * threads) {
    const Parameter<float> p = initial(i);
    const float missing = __int_as_float(0x7FC00000);
    const bool has_it = ownership.has(rank, i);
    state.master[i] = has_it ? p.master : missing;
    state.first[i] = has_it ? p.first : missing;
    state.second[i] = has_it ? p.second : missing;
  }
}

// Parameters `first` to `last`; both may lie within a piece, whose other parameters another GPU or another bucket has.
__global__ __launch_bounds__(threads) void adamw_kernel(const bf16* gradients, State state, bf16* weights, std::size_t first,
                                                        std::size_t last, float share, float correction1, float correction2) {
  const std::size_t at = (first / piece + std::size_t{blockIdx.x} * threads + threadIdx.x) * piece;
  if (at >= last) return;
  if (at >= first && at + piece <= last) {
    using Quad = device::Vector16<float>;
    using Packed = device::Vector<bf16, piece>;
    auto* const master = reinterpret_cast<Quad*>(state.master + at);
    auto* const moment1 = reinterpret_cast<Quad*>(state.first + at);
    auto* const moment2 = reinterpret_cast<Quad*>(state.second + at);
    const Packed gradient = *reinterpret_cast<const Packed*>(gradients + at);
    Quad m = *master, v1 = *moment1, v2 = *moment2;
    Packed rounded;
#pragma unroll
    for (int k = 0; k < static_cast<int>(piece); ++k) {
      const Parameter<float> p = updated({m[k], v1[k], v2[k]}, share * __bfloat162float(gradient[k]), correction1, correction2);
      m[k] = p.master, v1[k] = p.first, v2[k] = p.second;
      rounded[k] = __float2bfloat16_rn(p.master);
    }
    *master = m, *moment1 = v1, *moment2 = v2;
    *reinterpret_cast<Packed*>(weights + at) = rounded;
    return;
  }
  for (std::size_t i = max(at, first); i < min(at + piece, last); ++i) {
    const Parameter<float> p = updated({state.master[i], state.first[i], state.second[i]}, share * __bfloat162float(gradients[i]),
                                       correction1, correction2);
    state.master[i] = p.master, state.first[i] = p.first, state.second[i] = p.second;
    weights[i] = __float2bfloat16_rn(p.master);
  }
}

class ZeroOptimizer final : public Workload {
 public:
  explicit ZeroOptimizer(Setup& setup)
      : gpus_{static_cast<std::size_t>(setup.gpus())},
        count_{rounded_up(setup.size("parameters"), gpus_)},
        bucket_{rounded_up((setup.size("bucket_mib") << 20) / sizeof(bf16), gpus_ * piece)},
        ordinals_{ordinals(setup)},
        nccl_{setup, ordinals_.data(), setup.gpus(), static_cast<int>(setup.size("ctas"))} {
    for (std::size_t rank = 0; rank < gpus_; ++rank) {
      const auto gpu = static_cast<int>(rank);
      // Some gradients of the first two GPUs cancel: their sum is zero, not small.
      const Places cancelling = at(Axis{1, count_}, count_ / 3, std::min<std::size_t>(count_ - count_ / 3, 4096));
      Pattern pattern = normal(0, 0.02f);
      if (rank < 2) pattern = pattern.set(rank == 0 ? 0.5f : -0.5f, cancelling);
      else pattern = pattern.set(0, cancelling);
      gradients_.push_back(setup.input<bf16>(count_, pattern, {.name = "gradients", .device = gpu}));
      weights_.push_back(setup.output<bf16>(count_, {.name = "weights", .device = gpu}));
      sums_.push_back(setup.scratch<bf16>(count_, {.name = "summed gradients", .device = gpu}));
      states_.push_back(setup.scratch<float>(3 * padded(), {.name = "master weights and moments", .device = gpu}));
      sending_.push_back(setup.stream(gpu));
      for (std::size_t b = 0; b < buckets(); ++b) {
        received_.push_back(setup.event(gpu));
        done_.push_back(setup.event(gpu));
      }
      forked_.push_back(setup.event(gpu));
    }
  }

  // The gradients go once around, and each parameter is updated on one GPU.
  Cost cost() const override {
    const double ranks = static_cast<double>(gpus_), count = static_cast<double>(count_);
    return {.bytes = 28 * count / ranks, .peer_bytes = 2 * (ranks - 1) / ranks * count * sizeof(bf16)};
  }
  double expected_output(int, std::size_t index) const override {
    double sum = 0;
    for (const auto& gradients : gradients_) sum += gradients.host(index);
    const Parameter<float> p = initial(index);
    return updated<double>({p.master, p.first, p.second}, sum / static_cast<double>(gpus_), correction(beta1), correction(beta2))
        .master;
  }

  void metrics(std::string_view variant, Metrics& metrics) override {
    const bool is_replicated = variant.starts_with("replicated");
    const double state_bytes = 12 * static_cast<double>(count_) / static_cast<double>(is_replicated ? 1 : gpus_);
    metrics.report("state_per_gpu", state_bytes / (1 << 20), "MiB", Metrics::Better::lower);
    metrics.report_rate("steps", 1, "steps/s");
  }

  void restore_replicated(Launch& launch) { restore(launch, {count_, count_, 0}); }
  void restore_shares(Launch& launch) { restore(launch, {count_, count_, gpus_}); }
  void restore_bucket_shares(Launch& launch) { restore(launch, {count_, bucket_, gpus_}); }

  void replicated(Launch& launch) {
    nccl_->together([&] {
      for (std::size_t rank = 0; rank < gpus_; ++rank)
        nccl_->all_reduce(static_cast<int>(rank), gradients_[rank], sums_[rank], count_, nccl::Type::bf16, launch.streams[rank]);
    });
    for (std::size_t rank = 0; rank < gpus_; ++rank) update(launch.streams[rank], rank, 0, count_);
  }
  void zero1(Launch& launch) {
    const std::size_t share = count_ / gpus_;
    nccl_->together([&] {
      for (std::size_t rank = 0; rank < gpus_; ++rank) reduce_scatter(rank, 0, share, launch.streams[rank]);
    });
    for (std::size_t rank = 0; rank < gpus_; ++rank) update(launch.streams[rank], rank, rank * share, (rank + 1) * share);
    nccl_->together([&] {
      for (std::size_t rank = 0; rank < gpus_; ++rank) all_gather(rank, 0, share, launch.streams[rank]);
    });
  }
  // A rank has its share of each bucket. While one bucket is updated, the next is summed and the one before is gathered.
  void zero1_bucketed(Launch& launch) {
    fork(launch);
    for (std::size_t b = 0; b <= buckets(); ++b) {
      nccl_->together([&] {
        for (std::size_t rank = 0; rank < gpus_ && b < buckets(); ++rank)
          reduce_scatter(rank, b * bucket_, share_of(b), sending_[rank]);
      });
      for (std::size_t rank = 0; rank < gpus_ && b < buckets(); ++rank) {
        const std::size_t first = b * bucket_ + rank * share_of(b);
        update_beside(launch, rank, b, first, first + share_of(b));
      }
      if (b == 0) continue;
      for (std::size_t rank = 0; rank < gpus_; ++rank) check(cudaStreamWaitEvent(sending_[rank], done(rank, b - 1)));
      nccl_->together([&] {
        for (std::size_t rank = 0; rank < gpus_; ++rank) all_gather(rank, (b - 1) * bucket_, share_of(b - 1), sending_[rank]);
      });
    }
    join(launch);
  }
  void replicated_bucketed(Launch& launch) {
    fork(launch);
    for (std::size_t b = 0; b < buckets(); ++b) {
      const std::size_t first = b * bucket_, count = share_of(b) * gpus_;
      nccl_->together([&] {
        for (std::size_t rank = 0; rank < gpus_; ++rank)
          nccl_->all_reduce(static_cast<int>(rank), gradients_[rank] + first, sums_[rank] + first, count, nccl::Type::bf16,
                            sending_[rank]);
      });
      for (std::size_t rank = 0; rank < gpus_; ++rank) update_beside(launch, rank, b, first, first + count);
    }
    join(launch);
  }

 private:
  static std::size_t rounded_up(std::size_t count, std::size_t multiple) { return (count + multiple - 1) / multiple * multiple; }
  static std::vector<int> ordinals(const Setup& setup) {
    std::vector<int> all;
    for (int gpu = 0; gpu < setup.gpus(); ++gpu) all.push_back(setup.device_ordinal(gpu));
    return all;
  }
  static double correction(float beta) { return 1 / (1 - std::pow(static_cast<double>(beta), step_number)); }

  std::size_t padded() const { return rounded_up(count_, 64); }
  std::size_t buckets() const { return (count_ + bucket_ - 1) / bucket_; }
  std::size_t share_of(std::size_t bucket) const { return std::min(bucket_, count_ - bucket * bucket_) / gpus_; }
  cudaEvent_t received(std::size_t rank, std::size_t bucket) const { return received_[rank * buckets() + bucket]; }
  cudaEvent_t done(std::size_t rank, std::size_t bucket) const { return done_[rank * buckets() + bucket]; }
  State state(std::size_t rank) const {
    float* const all = states_[rank];
    return {all, all + padded(), all + 2 * padded()};
  }

  void restore(Launch& launch, const Ownership& ownership) const {
    for (std::size_t rank = 0; rank < gpus_; ++rank) {
      const SelectedGpu selected{ordinals_[rank]};
      launch_kernel(launch.streams[rank], initialize_kernel, {1056, threads}, state(rank), ownership, rank);
    }
  }
  void reduce_scatter(std::size_t rank, std::size_t first, std::size_t share, cudaStream_t stream) const {
    nccl_->reduce_scatter(static_cast<int>(rank), gradients_[rank] + first, sums_[rank] + first + rank * share, share,
                          nccl::Type::bf16, stream);
  }
  void all_gather(std::size_t rank, std::size_t first, std::size_t share, cudaStream_t stream) const {
    nccl_->all_gather(static_cast<int>(rank), weights_[rank] + first + rank * share, weights_[rank] + first, share,
                      nccl::Type::bf16, stream);
  }
  void update(cudaStream_t stream, std::size_t rank, std::size_t first, std::size_t last) const {
    const SelectedGpu selected{ordinals_[rank]};
    const std::size_t pieces = (last + piece - 1) / piece - first / piece;
    launch_kernel(stream, adamw_kernel, {static_cast<unsigned>((pieces + threads - 1) / threads), threads}, sums_[rank],
                  state(rank), weights_[rank], first, last, 1.0f / static_cast<float>(gpus_),
                  static_cast<float>(correction(beta1)), static_cast<float>(correction(beta2)));
  }
  // On the GPU's own stream, when the bucket's sums are there.
  void update_beside(Launch& launch, std::size_t rank, std::size_t bucket, std::size_t first, std::size_t last) const {
    check(cudaEventRecord(received(rank, bucket), sending_[rank]));
    check(cudaStreamWaitEvent(launch.streams[rank], received(rank, bucket)));
    update(launch.streams[rank], rank, first, last);
    check(cudaEventRecord(done(rank, bucket), launch.streams[rank]));
  }
  void fork(Launch& launch) const {
    for (std::size_t rank = 0; rank < gpus_; ++rank) {
      check(cudaEventRecord(forked_[rank], launch.streams[rank]));
      check(cudaStreamWaitEvent(sending_[rank], forked_[rank]));
    }
  }
  void join(Launch& launch) const {
    for (std::size_t rank = 0; rank < gpus_; ++rank) {
      check(cudaEventRecord(forked_[rank], sending_[rank]));
      check(cudaStreamWaitEvent(launch.streams[rank], forked_[rank]));
    }
  }

  std::size_t gpus_, count_, bucket_;
  std::vector<int> ordinals_;  // NCCL reads them when it is opened
  Opened<Nccl> nccl_;
  std::vector<Input<bf16>> gradients_;
  std::vector<Output<bf16>> weights_;
  std::vector<Scratch<bf16>> sums_;
  std::vector<Scratch<float>> states_;
  std::vector<cudaStream_t> sending_;
  std::vector<cudaEvent_t> received_, done_, forked_;
};

}  // namespace

extern constinit const Pair zero_optimizer{
    .teaches =
        "after an all-reduce every GPU makes the same update; reduce-scatter, an update of the own share and all-gather send "
        "the same bytes and update once",
    .lesson = "zero1",
    .make = make<ZeroOptimizer>,
    .baseline = {.name = "replicated",
                 .run = call<&ZeroOptimizer::replicated>,
                 .reset = call<&ZeroOptimizer::restore_replicated>},
    .optimized = variants({{.name = "zero1",
                            .run = call<&ZeroOptimizer::zero1>,
                            .reset = call<&ZeroOptimizer::restore_shares>,
                            .same_bits_as = "replicated"},
                           {.name = "zero1_bucketed",
                            .run = call<&ZeroOptimizer::zero1_bucketed>,
                            .reset = call<&ZeroOptimizer::restore_bucket_shares>,
                            .same_bits_as = "replicated"}}),
    .controls = variants({{.name = "replicated_bucketed",
                           .run = call<&ZeroOptimizer::replicated_bucketed>,
                           .reset = call<&ZeroOptimizer::restore_replicated>,
                           .same_bits_as = "replicated"}}),
    .bound = Bound::transfer,
    // The sum of the gradients and the weights are rounded to bf16, 1.6e-3 each; the step changes weights by a tenth.
    .tolerance = within(2.5e-3),
    .needs = {.gpus = 2, .peer_access = true, .libraries = {Library::nccl}},
    .sizes = sizes({{.name = "parameters", .full = 400'000'000, .least = 64, .most = 1'000'000'000},
                    {.name = "bucket_mib", .full = 64, .most = 1024, .scales = false},
                    {.name = "ctas", .full = 0, .most = 32, .scales = false}}),
    .sweep = cases({{"bucket_4_mib", "bucket_mib=4"},
                    {"bucket_16_mib", "bucket_mib=16"},
                    {"bucket_64_mib", "bucket_mib=64"},
                    {"bucket_256_mib", "bucket_mib=256"},
                    {"ctas_4", "ctas=4"},
                    {"ctas_8", "ctas=8"},
                    {"ctas_16", "ctas=16"},
                    {"ctas_32", "ctas=32"}}),
    // The border between two shares lies within a piece of 16 bytes, and the last bucket is short.
    .edges = cases({{"odd", "parameters=1000003,bucket_mib=1"}, {"few", "parameters=67"}}),
};

}  // namespace aisp::ch13
