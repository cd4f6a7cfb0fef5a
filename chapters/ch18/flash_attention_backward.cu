// SPDX-License-Identifier: Apache-2.0
// dQ, dK and dV of causal attention. Step by step the weights P, their gradients dP and those of the scores, dS, are whole
// matrices that are written and read, ten times in all, and their upper half is 0. With one log-sum-exp for each row weights are
// computed again, tile by tile, where they are used; then tiles above the diagonal can be left out of all five products. What
// remains is dQ, to which every block of keys adds.
#include <cuda_bf16.h>
#include <aisp/device/reduce.cuh>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <string_view>

#include "attention/backward.hpp"
#include "attention_rows.hpp"
#include "cudnn_attention_backward.hpp"
#include "gradient_reference.cuh"
#include "mma_backward.cuh"
#include "mma_tiles.cuh"
#include "rows.cuh"

namespace aisp::ch18 {
namespace {

using attention::bf16, attention::Causal;

// Computes the results of the forward pass: O and the log-sum-exps. Not timed.
__global__ __launch_bounds__(mma_tiles::threads, 2) void forward_kernel(const bf16* q, const bf16* k, const bf16* v, bf16* o,
                                                                        float* log_sums, int length) {
  extern __shared__ __align__(1024) unsigned char memory[];
  constexpr auto scale = static_cast<float>(score_scale * log2_of_e);
  const int first_row = static_cast<int>(blockIdx.x) * mma_tiles::query_rows;
  const unsigned chunk = blockIdx.y * static_cast<unsigned>(length) * mma_tiles::row_chunks;
  mma_tiles::copy_rows<mma_tiles::query_rows>(memory, q, chunk + static_cast<unsigned>(first_row) * mma_tiles::row_chunks,
                                              length - first_row);
  const mma_tiles::Lanes lanes{memory};
  float sums[2][head_size / 2] = {};
  attention::Rows rows[2];
  int before = -first_row;  // of this tile of keys, less the block's first row
  mma_tiles::sum_values(sums, memory, lanes, k, v, mma_tiles::InOnePiece{chunk}, min(length, first_row + mma_tiles::query_rows),
                        [&](int i, float(&scores)[mma_tiles::keys / 2], float(&sum)[head_size / 2]) {
                          const int t = mma_tiles::thread_again();
                          const int own = t / 32 * mma_tiles::warp_rows + i * 16 + t % 32 / 4 - t % 4 * 2 - before;
#pragma unroll
                          for (int j = 0; j < mma_tiles::keys / 2; ++j)
                            if (j / 4 * 8 + j % 2 - j / 2 % 2 * 8 > own) scores[j] = -attention::infinity;
                          float factor[2];
                          if (attention::online_softmax(scores, rows[i], scale, factor)) attention::rescale(sum, factor);
                          before += i * mma_tiles::keys;
                        });
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    attention::whole_sums(rows[i]);
    const float factor[2] = {1 / rows[i].sum[0], 1 / rows[i].sum[1]};
    attention::rescale(sums[i], factor);
    const int t = mma_tiles::thread_again();
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (const int row = first_row + t / 32 * mma_tiles::warp_rows + i * 16 + t % 32 / 4 + half * 8; t % 4 == 0 && row < length)
        log_sums[blockIdx.y * static_cast<std::size_t>(length) + row] =
            attention::log_sum_exp(rows[i].maximum[half], rows[i].sum[half], scale);
  }
  mma_tiles::store_rows(sums, memory, o + std::size_t{chunk} * 8, first_row, length);
}

// A row of a matrix, eight elements a thread at a time; act(column, x) changes them.
template <class Act>
__device__ __forceinline__ void each_packet(bf16* matrix, unsigned columns, std::size_t begin, const Act& act) {
  uint4* const row = reinterpret_cast<uint4*>(matrix + begin);
  for (unsigned i = threadIdx.x; i * shared::packet < columns; i += blockDim.x) {
    float x[shared::packet];
    shared::unpack(row[i], x);
    act(i, x);
    row[i] = shared::pack(x);
  }
}

// The baseline's matrices have a block for each row (of all heads). Weights from the scores, in place.
__global__ __launch_bounds__(256) void weights_kernel(bf16* scores, const float* log_sums, unsigned length, unsigned pitch) {
  const unsigned last = blockIdx.x % length;
  const float offset = log_sums[blockIdx.x] * shared::log2_e;
  each_packet(scores, length, static_cast<std::size_t>(blockIdx.x) * pitch, [&](unsigned i, float(&x)[shared::packet]) {
#pragma unroll
    for (unsigned j = 0; j < shared::packet; ++j)
      x[j] = i * shared::packet + j <= last ? device::exp2_approximate(fmaf(x[j], shared::log2_e, -offset)) : 0;
  });
}

// dS = P (dP - the sum of O dO) times the scale, over dP.
__global__ __launch_bounds__(256) void derive_kernel(const bf16* weights, bf16* d_p, const bf16* o, const bf16* d_o,
                                                     unsigned length, unsigned pitch) {
  __shared__ float parts[device::largest_block_in_warps];
  const std::size_t begin = static_cast<std::size_t>(blockIdx.x) * pitch, of_o = blockIdx.x * head_size + threadIdx.x;
  const float product = threadIdx.x < head_size ? __bfloat162float(o[of_o]) * __bfloat162float(d_o[of_o]) : 0;
  const float delta = device::block_reduce(product, 0.0f, device::Sum{}, parts);
  each_packet(d_p, length, begin, [&](unsigned i, float(&x)[shared::packet]) {
    float p[shared::packet];
    shared::unpack(reinterpret_cast<const uint4*>(weights + begin)[i], p);
#pragma unroll
    for (unsigned j = 0; j < shared::packet; ++j) x[j] = p[j] * (x[j] - delta) * static_cast<float>(score_scale);
  });
}

// Scores grow apart along the keys of the first head and come together along those of the second; in the first rows of all heads
// single keys have the weight. There are no staircases: no maximum is to be outgrown here, and keys without weight have no
// gradients to be wrong. Some rows of dO are 0.
Pattern backward_keys(const RowLayout& rows) {
  constexpr float apart = 2;  // the baseline rounds scores to bf16
  const Places all_keys = all_of(rows.row_axis());
  return normal(0, 1).times(1, apart, all_keys, at(rows.head_axis(), 0)).times(apart, 1, all_keys, at(rows.head_axis(), 1));
}
Pattern result_gradients() { return normal(0, 1).set(0, at({head_size, 97}, 13)); }

class FlashAttentionBackward final : public Workload {
 public:
  explicit FlashAttentionBackward(Setup& setup)
      : batch_{setup.size("batch")},
        heads_{setup.size("heads")},
        length_{setup.size("tokens")},
        pitch_{(length_ + shared::packet - 1) / shared::packet * shared::packet},
        rows_{rows_of_heads(batch_ * heads_, length_)},
        // Constant: what the forward pass makes of them in `prepare` must still be true in every run.
        q_{setup.input<bf16>(rows_.elements(), queries(rows_), {.name = "q", .constant = true})},
        k_{setup.input<bf16>(rows_.elements(), backward_keys(rows_), {.name = "k", .constant = true})},
        v_{setup.input<bf16>(rows_.elements(), normal(0, 1), {.name = "v", .constant = true})},
        d_o_{setup.input<bf16>(rows_.elements(), result_gradients(), {.name = "gradient of o", .constant = true})},
        d_q_{setup.output<bf16>(rows_.elements(), {.name = "gradient of q", .groups = rows_.head_axis()})},
        d_k_{setup.output<bf16>(rows_.elements(), {.name = "gradient of k", .groups = rows_.head_axis()})},
        d_v_{setup.output<bf16>(rows_.elements(), {.name = "gradient of v", .groups = rows_.head_axis()})},
        o_{setup.scratch<bf16>(rows_.elements(), {.name = "o"})},
        log_sums_{setup.scratch<float>(rows_.heads * length_, {.name = "log-sum-exps"})},
        weights_{setup.scratch<bf16>(rows_.heads * length_ * pitch_, {.name = "weights"})},
        d_scores_{setup.scratch<bf16>(rows_.heads * length_ * pitch_, {.name = "gradients of the scores"})},
        parts_{attention::backward_scratch(length_, heads_, batch_, head_size)},
        padded_log_sums_{setup.scratch<float>(parts_.rows, {.name = "padded log-sum-exps"})},
        deltas_{setup.scratch<float>(parts_.rows, {.name = "sums of o times its gradient"})},
        d_q_sums_{setup.scratch<float>(parts_.d_q_sums, {.name = "sums of the gradient of q"})},
        added_{setup.scratch<unsigned>(parts_.added, {.name = "parts added"})},
        begun_{setup.scratch<unsigned>(1, {.name = "blocks begun"})},
        reproducible_{setup.reproducible()},
        reference_{setup, rows_},
        cublas_{setup},
        cudnn_{setup, shared::AttentionGradients{batch_, heads_, length_, head_size}},
        tuned_cudnn_{setup, shared::AttentionGradients{batch_, heads_, length_, head_size}},
        deterministic_cudnn_{setup, shared::AttentionGradients{batch_, heads_, length_, head_size, true}} {
    if (length_ < 2) throw Unsupported{"of one token dQ and dK are 0, and limits are relative to what they should be"};
  }

  Cost cost() const override {
    const auto length = static_cast<double>(length_);
    // O and the log-sum-exps are read, too.
    return {.flops = 10 * static_cast<double>(rows_.heads) * length * (length + 1) / 2 * static_cast<double>(head_size),
            .math = Math::bf16,
            .bytes = 8 * static_cast<double>(q_.bytes()) + static_cast<double>(log_sums_.bytes())};
  }
  void compute_reference(Launch& launch) override { reference_.compute(launch, q_, k_, v_, d_o_); }
  double expected_output(int output, std::size_t i) const override { return reference_.gradient(output, i); }

  void forward(Launch& launch) {
    const auto blocks = static_cast<unsigned>((length_ + mma_tiles::query_rows - 1) / mma_tiles::query_rows);
    launch(forward_kernel, {{blocks, static_cast<unsigned>(rows_.heads)}, mma_tiles::threads, mma_tiles::shared_bytes}, q_, k_,
           v_, o_, log_sums_, length_);
  }
  void whole_matrices(Launch& launch) {
    const Grid grid{static_cast<unsigned>(rows_.heads * length_), 256};
    cublas_->use(launch.stream);
    by_columns(q_, k_, weights_, static_cast<float>(score_scale));
    launch(weights_kernel, grid, weights_, log_sums_, length_, pitch_);
    by_keys(weights_, CUBLAS_OP_T, d_o_, d_v_);
    by_columns(d_o_, v_, d_scores_, 1);
    launch(derive_kernel, grid, weights_, d_scores_, o_, d_o_, length_, pitch_);
    by_keys(d_scores_, CUBLAS_OP_N, k_, d_q_);
    by_keys(d_scores_, CUBLAS_OP_T, q_, d_k_);
  }
  void recompute_full(Launch& launch) { run_mma(launch, mma_backward::backward_kernel<false>); }
  void recompute_causal(Launch& launch) { run_mma(launch, mma_backward::backward_kernel<true>); }
  void wgmma(Launch& launch) { run_engine<false, attention::FirstKeysFirst, false>(launch); }
  void dq_bulk_reduce(Launch& launch) { run_engine<false, attention::FirstKeysFirst, true>(launch); }
  void heads_in_turn(Launch& launch) { run_engine<false, attention::HeadsInTurn, true>(launch); }
  void dq_in_order(Launch& launch) { run_engine<true, attention::FirstKeysFirst, true>(launch); }

  void plan_cudnn(Launch& launch) {
    forward(launch);
    cudnn_->plan();
  }
  void cudnn(Launch& launch) { cudnn_->run(launch.stream, tensors()); }
  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    forward(launch);
    tuned_cudnn_->tune(launch.stream, tensors());
  }
  void cudnn_tuned(Launch& launch) { tuned_cudnn_->run(launch.stream, tensors()); }
  void plan_deterministic(Launch& launch) {
    forward(launch);
    deterministic_cudnn_->plan();
  }
  void cudnn_deterministic(Launch& launch) { deterministic_cudnn_->run(launch.stream, tensors()); }

 private:
  // Spelled out because the header overloads the name.
  using StridedBatched = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                                        const void*, cudaDataType_t, int, long long, const void*, cudaDataType_t, int, long long,
                                        const void*, void*, cudaDataType_t, int, long long, int, cublasComputeType_t,
                                        cublasGemmAlgo_t);
  // An operand of cuBLAS, whose matrices have columns: of K it is one of [head][row][column] read as [head][column][row].
  struct Operand {
    const bf16* data;
    std::size_t pitch;
    cublasOperation_t as = CUBLAS_OP_N;
  };
  void multiply(std::size_t m, std::size_t n, std::size_t depth, const Operand& a, const Operand& b, bf16* c, std::size_t c_pitch,
                float alpha) {
    const float zero = 0;
    const auto number = [](std::size_t x) { return static_cast<int>(x); };
    const auto stride = [&](std::size_t pitch) { return static_cast<long long>(length_ * pitch); };
    const auto gemm = Cublas::function<StridedBatched>("cublasGemmStridedBatchedEx");
    check(gemm(cublas_->handle(), a.as, b.as, number(m), number(n), number(depth), &alpha, a.data, CUDA_R_16BF, number(a.pitch),
               stride(a.pitch), b.data, CUDA_R_16BF, number(b.pitch), stride(b.pitch), &zero, c, CUDA_R_16BF, number(c_pitch),
               stride(c_pitch), number(rows_.heads), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }
  // A matrix of scores: rows of `left` times rows of `right`.
  void by_columns(const bf16* left, const bf16* right, bf16* to, float factor) {
    multiply(length_, length_, head_size, {right, head_size, CUBLAS_OP_T}, {left, head_size}, to, pitch_, factor);
  }
  // A matrix of scores, as it is (rows of queries) or transposed (rows of keys), times `right`.
  void by_keys(const bf16* scores, cublasOperation_t as, const bf16* right, bf16* to) {
    multiply(head_size, length_, length_, {right, head_size}, {scores, pitch_, as}, to, head_size, 1);
  }

  attention::Backward<Causal> work() const {
    attention::Backward<Causal> work{};
    work.lengths = {static_cast<int>(length_), static_cast<int>(length_)};
    work.scale = static_cast<float>(score_scale);
    work.log_sums = log_sums_;
    work.log_sum_strides = {1, length_, heads_ * length_};
    work.padded_log_sums = padded_log_sums_, work.deltas = deltas_, work.d_q_sums = d_q_sums_;
    work.added = added_, work.begun = begun_;
    return work;
  }
  template <bool in_order, class Blocks, bool staged>
  attention::BackwardPass<head_size, Causal, in_order, Blocks, staged> pass() const {
    const auto tensor = [&](const bf16* data) { return attention::heads_first(data, batch_, heads_, length_, head_size); };
    return {{tensor(q_), tensor(k_), tensor(v_), tensor(o_), tensor(d_o_), tensor(d_q_), tensor(d_k_), tensor(d_v_)}, work()};
  }
  template <bool in_order, class Blocks, bool staged>
  void run_engine(Launch& launch) const {
    pass<in_order, Blocks, staged>().run(launch);
  }
  // Between the engine's kernels, whose layout of dQ's sums it has.
  template <class Kernel>
  void run_mma(Launch& launch, Kernel kernel) const {
    const auto pass = this->pass<false, attention::FirstKeysFirst, true>();
    launch(attention::backward_begin<head_size, Causal>, pass.rows_grid(), pass.work);
    launch(kernel, {pass.blocks(), mma_backward::threads, sizeof(mma_backward::Memory)}, pass.work,
           mma_backward::Operands{q_, k_, v_, d_o_, d_k_, d_v_});
    launch(attention::backward_end<head_size, Causal>, pass.rows_grid(), pass.work);
  }
  shared::CudnnAttentionBackward::Tensors tensors() const {
    return {q_, k_, v_, o_, d_o_, log_sums_, d_q_, d_k_, d_v_, d_q_sums_, deltas_};
  }

  std::size_t batch_, heads_, length_;
  std::size_t pitch_;  // of a row of scores
  RowLayout rows_;
  Input<bf16> q_, k_, v_, d_o_;
  Output<bf16> d_q_, d_k_, d_v_;
  Scratch<bf16> o_;
  Scratch<float> log_sums_;
  Scratch<bf16> weights_, d_scores_;
  attention::BackwardScratch parts_;
  Scratch<float> padded_log_sums_, deltas_, d_q_sums_;
  Scratch<unsigned> added_, begun_;
  bool reproducible_;
  GradientReference reference_;
  Opened<Cublas> cublas_;
  Opened<shared::CudnnAttentionBackward> cudnn_, tuned_cudnn_, deterministic_cudnn_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};
constexpr Needs hopper{.min_sm = 90, .max_sm = 90};

}  // namespace

extern constinit const Pair flash_attention_backward{
    .teaches =
        "one log-sum-exp for each row is enough to compute weights again, tile by tile, and then a mask halves five products",
    .lesson = "recompute_causal",
    .make = make<FlashAttentionBackward>,
    // Its scores are rounded to bf16: those that count are up to 8 and more, where that is up to 2^-5 and 1.8e-2 on average,
    // which is what their weights are off by; twice that. A sum over many rows of which some elements cancel keeps that of the
    // others.
    .baseline = {.name = "whole_matrices",
                 .run = call<&FlashAttentionBackward::whole_matrices>,
                 .prepare = call<&FlashAttentionBackward::forward>,
                 .needs = {.libraries = {Library::cublas}},
                 .tolerance = within(4e-2, 0.8)},
    // Blocks add to dQ as they come, so that its bits differ from run to run.
    .optimized = variants({{.name = "recompute_full",
                            .run = call<&FlashAttentionBackward::recompute_full>,
                            .prepare = call<&FlashAttentionBackward::forward>,
                            .deterministic = false,
                            .kernels = nothing_spilled},
                           {.name = "recompute_causal",
                            .run = call<&FlashAttentionBackward::recompute_causal>,
                            .prepare = call<&FlashAttentionBackward::forward>,
                            .deterministic = false,
                            .kernels = nothing_spilled},
                           {.name = "wgmma",
                            .run = call<&FlashAttentionBackward::wgmma>,
                            .prepare = call<&FlashAttentionBackward::forward>,
                            .needs = hopper,
                            .deterministic = false,
                            .kernels = nothing_spilled},
                           {.name = "dq_bulk_reduce",
                            .run = call<&FlashAttentionBackward::dq_bulk_reduce>,
                            .prepare = call<&FlashAttentionBackward::forward>,
                            .needs = hopper,
                            .deterministic = false,
                            .kernels = nothing_spilled}}),
    // All of a head before the next begins; and dQ added in the order of the keys, whose bits are always the same.
    .controls = variants({{.name = "heads_in_turn",
                           .run = call<&FlashAttentionBackward::heads_in_turn>,
                           .prepare = call<&FlashAttentionBackward::forward>,
                           .needs = hopper,
                           .deterministic = false,
                           .kernels = nothing_spilled},
                          {.name = "dq_in_order",
                           .run = call<&FlashAttentionBackward::dq_in_order>,
                           .prepare = call<&FlashAttentionBackward::forward>,
                           .needs = hopper,
                           .kernels = nothing_spilled}}),
    .libraries = variants({{.name = "cudnn",
                            .run = call<&FlashAttentionBackward::cudnn>,
                            .prepare = call<&FlashAttentionBackward::plan_cudnn>,
                            .needs = {.libraries = {Library::cudnn}},
                            .deterministic = false},
                           {.name = "cudnn_tuned",
                            .run = call<&FlashAttentionBackward::cudnn_tuned>,
                            .prepare = call<&FlashAttentionBackward::tune_cudnn>,
                            .needs = {.libraries = {Library::cudnn}},
                            .deterministic = false},
                           {.name = "cudnn_deterministic",
                            .run = call<&FlashAttentionBackward::cudnn_deterministic>,
                            .prepare = call<&FlashAttentionBackward::plan_deterministic>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::compute,
    // O, weights, their derivatives and results are rounded to bf16 once each, 1.6e-3 four times: 3.2e-3. Where few keys have all
    // the weight, dP and the sum of O dO nearly cancel, and what is left keeps their rounding: half as much again on a CPU that
    // rounds likewise. Twice that, and of single elements that cancel 0.3.
    .tolerance = within(1e-2, 0.3),
    .sizes = sizes({{.name = "batch", .full = 2, .most = 256, .scales = false},
                    {.name = "heads", .full = 16, .most = 256, .scales = false},
                    {.name = "tokens", .full = 4096, .most = 32768}}),
    // 16384 tokens in all.
    .sweep = cases({{"tokens_512", "batch=32,tokens=512"},
                    {"tokens_1024", "batch=16,tokens=1024"},
                    {"tokens_2048", "batch=8,tokens=2048"},
                    {"tokens_4096", "batch=4,tokens=4096"},
                    {"tokens_8192", "batch=2,tokens=8192"},
                    {"tokens_16384", "batch=1,tokens=16384"}}),
    .edges = cases({{"two_tokens", "batch=1,heads=1,tokens=2"},
                    {"one_head", "batch=1,heads=1,tokens=512"},
                    {"tail", "batch=2,heads=5,tokens=713"}}),
    .reference_samples = 1 << 15,  // the gradients of a head's first keys are much larger than the others'
};

}  // namespace aisp::ch18
