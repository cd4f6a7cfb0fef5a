// SPDX-License-Identifier: Apache-2.0
// O = softmax(Q K^T / sqrt(128)) V. Between its products every score passes the exponential unit, one for 256 FLOPs of the tensor
// cores: half their time. wgmma runs while its warps do something else. A first kernel leaves the overlap to chance. In the
// second two warpgroups take turns, each with its next product under way while it exponentiates. The others leave work out.
// With a causal mask the order of blocks counts as much: see block_in_order.
#include <aisp/device_attribute.hpp>
#include <aisp/pair.hpp>
#include <aisp/tensor_map.hpp>
#include <algorithm>
#include <memory>
#include "attention_reference.hpp"
#include "attention_schedules.cuh"
#include "cudnn_attention.hpp"
#include "mma_sync_attention.cuh"
#include "tcgen05_attention.cuh"
#include "wgmma_attention.cuh"

namespace aisp::ch10 {
namespace {

using attention::bf16, attention::depth, attention::Consumer, attention::InOrder, attention::Rows, attention::Shared,
    attention::Work;
using attention::consumers, attention::warpgroup, attention::query_rows, attention::block_rows, attention::keys;
using FullRescale = attention::PingPong<false, false>;
using DeferredRescale = attention::PingPong<true, false>;
using KeptQueries = attention::PingPong<true, true>;
constexpr int threads = (1 + consumers) * warpgroup;

template <class Schedule, bool causal>
__global__ __launch_bounds__(threads, 1) void wgmma_kernel(const __grid_constant__ attention::Maps maps, Work<causal> work) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  attention::initialize(shared);
  if (threadIdx.x < warpgroup) {
    device::give_up_registers<24>();
    if (threadIdx.x == 0) attention::produce(shared, maps, work);
  } else {
    device::take_registers<240>();
    Consumer own{shared, static_cast<int>(threadIdx.x) / warpgroup - 1, {}, {}, {}, {}};
    Schedule::begin(own.index);
    for (int round = 0;; ++round) {
      const int block = own.next_block(work, round);
      if (block == work.none) break;
      Rows rows;
#pragma unroll
      for (float& sum : own.sums) sum = 0;
      Schedule::template rows_of_block<causal>(own, work.tiles(block), rows);
      own.store(maps.o, block * block_rows + own.index * query_rows, rows);
    }
    Schedule::end(own.index);
    if (threadIdx.x % warpgroup == 0) device::wait_stores_read<0>();
  }
}

class WarpSpecializedAttention final : public Workload {
 public:
  explicit WarpSpecializedAttention(Setup& setup)
      : batch_{setup.size("batch")},
        heads_{batch_ * setup.size("heads")},
        length_{setup.size("tokens")},
        causal_{setup.size("causal") == 1},
        q_{setup.input<bf16>(heads_ * length_ * depth, normal(0, 1), {.name = "q"})},
        k_{setup.input<bf16>(heads_ * length_ * depth, normal(0, 1), {.name = "k"})},
        v_{setup.input<bf16>(heads_ * length_ * depth, normal(0, 1), {.name = "v"})},
        o_{setup.output<bf16>(heads_ * length_ * depth, {.name = "o"})},
        taken_{setup.scratch<unsigned>(1, {.name = "taken"})},
        cpus_{setup.cpus()},
        cudnn_{setup, batch_, heads_ / batch_, length_, depth, mask()},
        tuned_cudnn_{setup, batch_, heads_ / batch_, length_, depth, mask()},
        reproducible_{setup.reproducible()} {
    const auto map = [&](const bf16* data, unsigned rows) { return matrix_map_bf16(data, heads_ * length_, depth, rows, 64); };
    maps_ = {map(q_, query_rows), map(k_, keys), map(v_, keys), map(o_, query_rows)};
  }
  Cost cost() const override {
    const auto length = static_cast<double>(length_);
    const double keys_of_a_row = causal_ ? (length + 1) / 2 : length;  // on average: of masked ones nothing need be computed
    return {.flops = 4 * static_cast<double>(heads_) * length * keys_of_a_row * depth,
            .math = Math::bf16,
            .bytes = static_cast<double>(q_.bytes() + k_.bytes() + v_.bytes() + o_.bytes())};
  }
  void compute_reference(Launch&) override { reference_.keep(k_, cpus_); }
  double expected(std::size_t index) const override { return reference_.output(index, q_, v_); }
  void mma_sync(Launch& launch) {
    using namespace attention::mma_sync;
    const auto grid = static_cast<unsigned>(heads_ * length_ / attention::mma_sync::query_rows);
    const auto kernel = causal_ ? attention_kernel<true> : attention_kernel<false>;
    launch(kernel, {grid, attention::mma_sync::threads, shared_bytes}, q_, k_, v_, o_, length_);
  }
  // Once: each run leaves it as it was.
  void clear_taken(Launch& launch) { check(cudaMemsetAsync(taken_, 0, taken_.bytes(), launch.stream)); }
  template <class Schedule>
  void wgmma(Launch& launch) {
    if (causal_) start<Schedule, true>(launch);
    else start<Schedule, false>(launch);
  }
  // Not run yet: scores and sums in tensor memory, a row a thread.
  void tcgen05(Launch& launch) {
    if (causal_) throw Unsupported{"this variant has no causal mask"};
    tcgen05_attention::run(launch, q_, k_, v_, o_, heads_ * length_, static_cast<int>(length_));
  }
  void plan_cudnn(Launch&) { cudnn_->plan(); }
  void cudnn(Launch& launch) { cudnn_->run(launch.stream, q_, k_, v_, o_); }
  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    tuned_cudnn_->tune(launch.stream, q_, k_, v_, o_);
  }
  void cudnn_tuned(Launch& launch) { tuned_cudnn_->run(launch.stream, q_, k_, v_, o_); }

 private:
  shared::Mask mask() const { return causal_ ? shared::Mask::causal : shared::Mask::none; }
  template <class Schedule, bool causal>
  void start(Launch& launch) {
    const Work<causal> work{static_cast<int>(heads_ * length_ / block_rows), static_cast<int>(length_ / block_rows), taken_};
    const unsigned blocks = std::min(static_cast<unsigned>(work.blocks), multiprocessors());
    launch(wgmma_kernel<Schedule, causal>, {blocks, threads, sizeof(Shared)}, maps_, work);
  }
  std::size_t batch_, heads_, length_;  // heads_: of all sequences
  bool causal_;
  Input<bf16> q_, k_, v_;
  Output<bf16> o_;
  Scratch<unsigned> taken_;
  int cpus_;
  attention::Maps maps_{};
  shared::AttentionReference reference_{heads_, length_, depth, causal_};
  Opened<shared::CudnnAttention> cudnn_, tuned_cudnn_;
  bool reproducible_;
};

template <class Schedule>
constexpr Variant on_wgmma(std::string_view name) {
  return {.name = name,
          .run = call<&WarpSpecializedAttention::wgmma<Schedule>>,
          .prepare = call<&WarpSpecializedAttention::clear_taken>,
          .needs = {.max_sm = 90}};
}
}  // namespace

extern constinit const Pair warp_specialized_attention{
    .teaches = "exponentials must hide under the products: one warpgroup exponentiates while the other's wgmma runs",
    .lesson = "wgmma_pingpong",
    .make = make<WarpSpecializedAttention>,
    .baseline = {.name = "mma_sync", .run = call<&WarpSpecializedAttention::mma_sync>},
    .optimized = variants(
        {on_wgmma<InOrder>("wgmma_tma"),
         on_wgmma<FullRescale>("wgmma_pingpong"),
         on_wgmma<DeferredRescale>("deferred_rescale"),
         on_wgmma<KeptQueries>("query_in_registers"),
         {.name = "tcgen05_attention", .run = call<&WarpSpecializedAttention::tcgen05>, .needs = tcgen05_attention::needs}}),
    .libraries = variants({{.name = "cudnn",
                            .run = call<&WarpSpecializedAttention::cudnn>,
                            .prepare = call<&WarpSpecializedAttention::plan_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}},
                           {.name = "cudnn_tuned",
                            .run = call<&WarpSpecializedAttention::cudnn_tuned>,
                            .prepare = call<&WarpSpecializedAttention::tune_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::compute,
    // Weights and results are rounded to bf16 once each: 1.6e-3 twice, 2.3e-3 together; half as much again is allowed.
    .tolerance = within(3.5e-3),
    .needs = {.min_sm = 90},
    .sizes = sizes({{.name = "batch", .full = 2, .most = 256, .scales = false},
                    {.name = "heads", .full = 16, .most = 256, .scales = false},
                    {.name = "tokens", .full = 8192, .multiple = 512},
                    option("causal")}),
    // 16384 tokens in all.
    .sweep = cases({{"tokens_1024", "batch=16,tokens=1024"},
                    {"tokens_2048", "batch=8,tokens=2048"},
                    {"tokens_4096", "batch=4,tokens=4096"},
                    {"tokens_8192", "batch=2,tokens=8192"},
                    {"tokens_16384", "batch=1,tokens=16384"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch10
