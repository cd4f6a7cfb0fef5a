// SPDX-License-Identifier: Apache-2.0
// One step of decoding with grouped heads: the query heads of a group want the same keys and values, and nearly nothing else is
// read. With a block for each query head every byte is fetched once for each head of the group, at best from L2. A block for a
// whole group fetches it once. Products of four heads on FMA units fill most issue slots of that time; as rows of one product on
// tensor cores they cost nothing that one notices.
#include <cuda_bf16.h>
#include <aisp/device/vector.cuh>
#include <aisp/libraries/fastest.hpp>
#include <aisp/pair.hpp>

#include <type_traits>

#include "cudnn_attention.hpp"
#include "decode_reference.hpp"
#include "row_cache.hpp"
#include "rows.cuh"

namespace aisp::ch18 {
namespace {

constexpr int threads = 128, warps = threads / 32;

struct Step {
  const bf16 *q, *k, *v;  // q[sequence][head], k and v[sequence][KV head][row]
  bf16* o;
  int group, context;
  float scale_log2;
};

// Dot products by warps: half a warp has a row, of which each lane loads 16 bytes. A block has `heads` neighbouring query heads
// of one group (blockIdx.x) of a sequence (blockIdx.y).
template <int heads>
struct DotPartial {
  float values[heads][head_size], maximum[heads], sum[heads];
};
template <int heads>
__global__ __launch_bounds__(threads, 2) void dot_kernel(Step step) {
  constexpr int rows_at_once = 8, tile = 2 * rows_at_once;
  __shared__ DotPartial<heads> parts[warps];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int half = lane / 16, piece = lane % 16, head = static_cast<int>(blockIdx.x) * heads;
  const std::size_t query = (std::size_t{blockIdx.y} * kv_heads * step.group + head) * head_size;
  const std::size_t cached = (std::size_t{blockIdx.y} * kv_heads + head / step.group) * step.context * head_size + piece * 8;

  float q[heads][8], sums[heads][8] = {}, maximum[heads], sum[heads] = {};
#pragma unroll
  for (int h = 0; h < heads; ++h) {
    shared::unpack(*reinterpret_cast<const uint4*>(step.q + query + h * head_size + piece * 8), q[h]);
#pragma unroll
    for (float& x : q[h]) x *= step.scale_log2;
    maximum[h] = -attention::infinity;
  }
  for (int first = warp * tile; first < step.context; first += warps * tile) {
    uint4 keys[rows_at_once], values[rows_at_once];
#pragma unroll
    for (int i = 0; i < rows_at_once; ++i) {
      const int row = min(first + i * 2 + half, step.context - 1);
      keys[i] = device::load_read_only(reinterpret_cast<const uint4*>(step.k + cached + std::size_t(row) * head_size));
      values[i] = device::load_read_only(reinterpret_cast<const uint4*>(step.v + cached + std::size_t(row) * head_size));
    }
    float scores[heads][rows_at_once];
#pragma unroll
    for (int i = 0; i < rows_at_once; ++i) {
      float key[8];
      shared::unpack(keys[i], key);
#pragma unroll
      for (int h = 0; h < heads; ++h) {
        float dot = 0;
#pragma unroll
        for (int d = 0; d < 8; ++d) dot = fmaf(q[h][d], key[d], dot);
        const float score = device::warp_sum<16>(dot);
        scores[h][i] = first + i * 2 + half < step.context ? score : -attention::infinity;
      }
    }
#pragma unroll
    for (int h = 0; h < heads; ++h) {
      float raised = shared::maximum_of(scores[h]);
      raised = fmaxf(maximum[h], fmaxf(raised, __shfl_xor_sync(~0u, raised, 16)));
      const float factor = device::exp2_approximate(maximum[h] - raised);
      maximum[h] = raised;
      sum[h] *= factor;
#pragma unroll
      for (float& x : sums[h]) x *= factor;
#pragma unroll
      for (float& x : scores[h]) {
        x = device::exp2_approximate(x - raised);
        sum[h] += x;
      }
    }
#pragma unroll
    for (int i = 0; i < rows_at_once; ++i) {
      float value[8];
      shared::unpack(values[i], value);
#pragma unroll
      for (int h = 0; h < heads; ++h)
#pragma unroll
        for (int d = 0; d < 8; ++d) sums[h][d] = fmaf(scores[h][i], value[d], sums[h][d]);
    }
  }
#pragma unroll
  for (int h = 0; h < heads; ++h) {
    sum[h] += __shfl_xor_sync(~0u, sum[h], 16);
#pragma unroll
    for (float& x : sums[h]) x += __shfl_xor_sync(~0u, x, 16);
    if (half == 0) {
#pragma unroll
      for (int d = 0; d < 8; ++d) parts[warp].values[h][piece * 8 + d] = sums[h][d];
    }
    if (lane == 0) parts[warp].maximum[h] = maximum[h], parts[warp].sum[h] = sum[h];
  }
  __syncthreads();
  for (int h = 0; h < heads; ++h) {
    float highest = -attention::infinity, value = 0, whole = 0;
    for (const DotPartial<heads>& part : parts) highest = fmaxf(highest, part.maximum[h]);
    for (const DotPartial<heads>& part : parts) {
      const float weight = device::exp2_approximate(part.maximum[h] - highest);
      whole += weight * part.sum[h];
      value += weight * part.values[h][threadIdx.x];
    }
    step.o[query + h * head_size + threadIdx.x] = __float2bfloat16_rn(value / whole);
  }
}

class GqaPacking final : public Workload {
 public:
  explicit GqaPacking(Setup& setup)
      : batch_{setup.size("batch")},
        group_{setup.size("group")},
        context_{setup.size("context")},
        q_{setup.input<bf16>(batch_ * heads() * head_size, queries_in_motion(group_), {.name = "q"})},
        // All keys of the second sequence are equal.
        k_{setup.input<bf16>(batch_ * kv_heads * context_ * head_size,
                             keys_in_motion({head_size, context_}, {context_ * head_size, kv_heads})
                                 .set(0.5, at(Axis{kv_heads * context_ * head_size, batch_}, 1)),
                             {.name = "k"})},
        v_{setup.input<bf16>(k_.size(), normal(0, 1), {.name = "v"})},
        lengths_{setup.input<int>(batch_, constant(static_cast<float>(context_)), {.name = "lengths", .constant = true})},
        o_{setup.output<bf16>(q_.size(), {.name = "o", .groups = {head_size, batch_ * heads()}})},
        reproducible_{setup.reproducible()},
        cudnn_{setup, shared::AttentionSizes{batch_, heads(), kv_heads, 1, context_, head_size}} {
    if (group_ > 16 || (group_ & (group_ - 1)) != 0) throw Unsupported{"groups are of 1, 2, 4, 8 or 16 query heads"};
  }

  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(batch_), "tokens of a layer/s");
  }
  Cost cost() const override {
    return {.flops = 4 * static_cast<double>(batch_ * heads()) * static_cast<double>(context_) * head_size,
            .math = Math::bf16,
            .bytes = static_cast<double>(q_.bytes() + k_.bytes() + v_.bytes() + o_.bytes())};
  }
  void compute_reference(Launch&) override { rows_.forget(batch_ * heads()); }
  double expected(std::size_t i) const override {
    const std::size_t row = i / head_size, first = row / group_ * context_;
    return rows_.of(row, [&] {
      return attend(
          context_, [&](std::size_t d) { return q_.host(row * head_size + d); },
          [&](std::size_t key, std::size_t d) { return k_.host((first + key) * head_size + d); },
          [&](std::size_t key, std::size_t d) { return v_.host((first + key) * head_size + d); });
    })[i % head_size];
  }

  void block_per_head(Launch& launch) { launch(dot_kernel<1>, grid(heads()), step()); }
  // Queries and results of more than four heads do not fit into the registers of a thread.
  void packed_fma(Launch& launch) {
    if (group_ == 1) launch(dot_kernel<1>, grid(heads()), step());
    else if (group_ == 2) launch(dot_kernel<2>, grid(heads() / 2), step());
    else launch(dot_kernel<4>, grid(heads() / 4), step());
  }
  void packed_mma(Launch& launch) {
    using namespace attention;
    const ContiguousCache cache{k_, v_, head_size, context_ * head_size, kv_heads * context_ * head_size};
    with_group([&]<int group>(std::integral_constant<int, group>) {
      launch(decode_kernel<head_size, group, 1, ContiguousCache, FixedSplits, bf16>,
             decode_grid<head_size, group>(kv_heads, static_cast<int>(batch_)),
             Decode<ContiguousCache, FixedSplits, bf16>{
                 q_, cache, {lengths_, 1}, static_cast<int>(heads()), score_scale_log2(), o_, nullptr});
    });
  }
  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    cudnn_->tune(launch.stream, q_, k_, v_, o_);
  }
  void cudnn_tuned(Launch& launch) { cudnn_->run(launch.stream, q_, k_, v_, o_); }

 private:
  std::size_t heads() const { return kv_heads * group_; }
  Grid grid(std::size_t blocks) const { return {dim3{static_cast<unsigned>(blocks), static_cast<unsigned>(batch_)}, threads}; }
  Step step() const { return {q_, k_, v_, o_, static_cast<int>(group_), static_cast<int>(context_), score_scale_log2()}; }
  template <class Act>
  void with_group(Act act) const {
    switch (group_) {
      case 1: return act(std::integral_constant<int, 1>{});
      case 2: return act(std::integral_constant<int, 2>{});
      case 4: return act(std::integral_constant<int, 4>{});
      case 8: return act(std::integral_constant<int, 8>{});
      default: return act(std::integral_constant<int, 16>{});
    }
  }

  std::size_t batch_, group_, context_;
  Input<bf16> q_, k_, v_;
  Input<int> lengths_;
  Output<bf16> o_;
  bool reproducible_;
  Opened<shared::CudnnAttention> cudnn_;
  shared::RowCache<Row> rows_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair gqa_packing{
    .teaches = "in decoding the heads of a group want the same bytes: packed as rows of one product they read them once",
    .lesson = "packed_mma",
    .make = make<GqaPacking>,
    .baseline = {.name = "block_per_head", .run = call<&GqaPacking::block_per_head>, .kernels = nothing_spilled},
    // The first step shares bytes without tensor cores.
    .optimized = variants({{.name = "packed_fma", .run = call<&GqaPacking::packed_fma>, .kernels = nothing_spilled},
                           {.name = "packed_mma", .run = call<&GqaPacking::packed_mma>, .kernels = nothing_spilled}}),
    .libraries = variants({{.name = "cudnn_tuned",
                            .run = call<&GqaPacking::cudnn_tuned>,
                            .prepare = call<&GqaPacking::tune_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::memory,
    // Weights and results are rounded to bf16 once each: 1.6e-3 twice, 2.3e-3 together. A group of 128 elements scatters, and
    // where one key has all the weight its rounding is common to all of them: up to 2^-9.
    .tolerance = within(5e-3),
    .sizes = sizes({{.name = "batch", .full = 64, .most = 4096},
                    {.name = "group", .full = 4, .most = 16, .scales = false},
                    {.name = "context", .full = 8192, .scales = false}}),
    // The cache is as large in all cases.
    .sweep = cases({{"group_1", "group=1"},
                    {"group_2", "group=2"},
                    {"group_4", "group=4"},
                    {"group_8", "group=8"},
                    {"group_16", "group=16"}}),
    .edges = cases({{"one_key", "batch=1,context=1"},
                    {"one_key_less", "batch=2,context=8191"},
                    {"one_key_more", "batch=2,context=8193"},
                    {"single_heads", "batch=3,group=1,context=129"},
                    {"pairs", "batch=3,group=2,context=63"},
                    {"groups_of_eight", "batch=3,group=8,context=65"},
                    {"groups_of_sixteen", "batch=3,group=16,context=1021"}}),
    .reference_samples = 512,
};

}  // namespace aisp::ch18
