// SPDX-License-Identifier: Apache-2.0
// O = softmax(Q K^T / sqrt(128)) V for long sequences. Step by step, the matrix of scores is written, read, written and read
// again: its bytes grow with the square of the length and soon outweigh all others. Kept online, maximum and sum of a row let a
// tile of scores be used up where it is made, in registers. Two passes over K need no matrix either, but half as many products
// more.
#include <aisp/device/reduce.cuh>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <string_view>

#include "attention/forward.hpp"
#include "attention_rows.hpp"
#include "cudnn_attention.hpp"
#include "mma_tiles.cuh"
#include "rows.cuh"

namespace aisp::ch18 {
namespace {

using attention::bf16, attention::Rows;

constexpr float exponent_scale = static_cast<float>(score_scale * log2_of_e);

// The place of a block of threads: a block of rows of the head blockIdx.y.
struct Place {
  unsigned first_row, first_chunk;  // of the head in Q, K, V and O, whose rows are equally many
  __device__ explicit Place(int length)
      : first_row{blockIdx.x * mma_tiles::query_rows},
        first_chunk{blockIdx.y * static_cast<unsigned>(length) * mma_tiles::row_chunks} {}
  __device__ void copy_queries(unsigned char* memory, const bf16* q, int length) const {
    mma_tiles::copy_rows<mma_tiles::query_rows>(memory, q, first_chunk + first_row * mma_tiles::row_chunks,
                                                length - static_cast<int>(first_row));
  }
  __device__ bf16* head_of(bf16* o) const { return o + std::size_t{first_chunk} * 8; }
};

__global__ __launch_bounds__(mma_tiles::threads, 2) void flash_tiles_kernel(const bf16* q, const bf16* k, const bf16* v, bf16* o,
                                                                            int length) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Place(length).copy_queries(memory, q, length);
  const mma_tiles::Lanes lanes{memory};
  float sums[2][head_size / 2] = {};
  Rows rows[2];
  mma_tiles::sum_values(sums, memory, lanes, k, v, mma_tiles::InOnePiece{Place(length).first_chunk}, length,
                        [&](int i, float(&scores)[mma_tiles::keys / 2], float(&sum)[head_size / 2]) {
                          float factor[2];
                          if (attention::online_softmax(scores, rows[i], exponent_scale, factor)) attention::rescale(sum, factor);
                        });
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    attention::whole_sums(rows[i]);
    const float factor[2] = {1 / rows[i].sum[0], 1 / rows[i].sum[1]};
    attention::rescale(sums[i], factor);
  }
  mma_tiles::store_rows(sums, memory, Place(length).head_of(o), static_cast<int>(Place(length).first_row), length);
}

// The same tiles without the online softmax: when values are summed, each row's maximum and sum are known.
__global__ __launch_bounds__(mma_tiles::threads, 2) void two_pass_kernel(const bf16* q, const bf16* k, const bf16* v, bf16* o,
                                                                         int length) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Place(length).copy_queries(memory, q, length);
  const mma_tiles::Lanes lanes{memory};
  float offsets[2][2];
  {
    Rows rows[2];
    mma_tiles::sum_exponentials(rows, memory, lanes, k, Place(length).first_chunk, length, exponent_scale);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      attention::whole_sums(rows[i]);
#pragma unroll
      for (int half = 0; half < 2; ++half) offsets[i][half] = rows[i].maximum[half] * exponent_scale + log2f(rows[i].sum[half]);
    }
  }
  float sums[2][head_size / 2] = {};
  mma_tiles::sum_values(sums, memory, lanes, k, v, mma_tiles::InOnePiece{Place(length).first_chunk}, length,
                        [&](int i, float(&scores)[mma_tiles::keys / 2], float(&)[head_size / 2]) {
#pragma unroll
                          for (int j = 0; j < mma_tiles::keys / 2; ++j)
                            scores[j] = device::exp2_approximate(fmaf(scores[j], exponent_scale, -offsets[i][j / 2 % 2]));
                        });
  mma_tiles::store_rows(sums, memory, Place(length).head_of(o), static_cast<int>(Place(length).first_row), length);
}

// A row of scores a block, in its registers from the only reading to the only writing. What is after the row's last column is
// left alone.
constexpr int held = 4;  // packets of a thread

__global__ __launch_bounds__(1024) void softmax_kernel(bf16* scores, unsigned columns, unsigned pitch) {
  __shared__ float parts[device::largest_block_in_warps];
  uint4* const row = reinterpret_cast<uint4*>(scores + static_cast<std::size_t>(blockIdx.x) * pitch);
  float x[held][shared::packet], maximum = shared::minus_infinity(), sum = 0;
#pragma unroll
  for (unsigned i = 0; i < held; ++i) {
    const unsigned packet = threadIdx.x + i * blockDim.x, column = packet * shared::packet;
    if (column < columns) shared::unpack(row[packet], x[i]);
#pragma unroll
    for (unsigned j = 0; j < shared::packet; ++j) {
      if (column + j >= columns) x[i][j] = shared::minus_infinity();
      maximum = fmaxf(maximum, x[i][j]);
    }
  }
  maximum = device::block_reduce(maximum, shared::minus_infinity(), device::Max{}, parts);
#pragma unroll
  for (unsigned i = 0; i < held; ++i)
#pragma unroll
    for (unsigned j = 0; j < shared::packet; ++j) {
      x[i][j] = device::exp2_approximate((x[i][j] - maximum) * shared::log2_e);
      sum += x[i][j];
    }
  const float factor = 1 / device::block_reduce(sum, 0.0f, device::Sum{}, parts);
#pragma unroll
  for (unsigned i = 0; i < held; ++i) {
    const unsigned packet = threadIdx.x + i * blockDim.x;
#pragma unroll
    for (float& value : x[i]) value *= factor;
    if (packet * shared::packet < columns) row[packet] = shared::pack(x[i]);
  }
}

class FlashAttentionForward final : public Workload {
  using Engine = attention::ForwardPass<head_size, head_size, attention::NoMask, attention::Dense, attention::Scaled, false,
                                        attention::InOrder>;

 public:
  explicit FlashAttentionForward(Setup& setup)
      : batch_{setup.size("batch")},
        heads_{batch_ * setup.size("heads")},
        length_{setup.size("tokens")},
        pitch_{(length_ + shared::packet - 1) / shared::packet * shared::packet},
        rows_{rows_of_heads(heads_, length_)},
        q_{setup.input<bf16>(rows_.elements(), queries(rows_), {.name = "q"})},
        k_{setup.input<bf16>(rows_.elements(), keys(rows_, static_cast<Along>(setup.size("staircase"))), {.name = "k"})},
        v_{setup.input<bf16>(rows_.elements(), normal(0, 1), {.name = "v"})},
        o_{setup.output<bf16>(rows_.elements(), {.name = "o", .groups = rows_.head_axis()})},
        scores_{setup.scratch<bf16>(heads_ * length_ * pitch_, {.name = "scores"})},
        cpus_{setup.cpus()},
        reproducible_{setup.reproducible()},
        reference_{rows_},
        cublas_{setup},
        cudnn_{setup, batch_, heads_ / batch_, length_, head_size, shared::Mask::none},
        tuned_cudnn_{setup, batch_, heads_ / batch_, length_, head_size, shared::Mask::none} {}

  Cost cost() const override {
    const auto length = static_cast<double>(length_);
    return {.flops = 4 * static_cast<double>(heads_) * length * length * static_cast<double>(head_size),
            .math = Math::bf16,
            .bytes = static_cast<double>(q_.bytes() + k_.bytes() + v_.bytes() + o_.bytes())};
  }
  void compute_reference(Launch&) override {
    reference_.keep(k_, v_, cpus_);
    checked_.compute(rows_, border_rows(length_), cpus_,
                     [&](std::size_t head, std::size_t row) { return expected_row(head, row); });
  }
  double expected(std::size_t i) const override {
    return expected_row(i / (length_ * head_size), i / head_size % length_)[i % head_size];
  }
  void validate(std::string_view variant) override {
    checked_.compare(o_, variant == "score_matrix" ? limit_of_rounded_scores : row_limit);
  }

  void score_matrix(Launch& launch) {
    multiply(launch, CUBLAS_OP_T, k_, q_, scores_, static_cast<float>(score_scale));
    const auto threads = std::clamp<std::size_t>((pitch_ / shared::packet + held - 1) / held, 1, 1024);
    launch(softmax_kernel, {static_cast<unsigned>(heads_ * length_), static_cast<unsigned>((threads + 31) / 32 * 32)}, scores_,
           length_, pitch_);
    multiply(launch, CUBLAS_OP_N, v_, scores_, o_, 1);
  }
  void flash_tiles(Launch& launch) { launch(flash_tiles_kernel, tiles(), q_, k_, v_, o_, length_); }
  void two_pass_tiles(Launch& launch) { launch(two_pass_kernel, tiles(), q_, k_, v_, o_, length_); }
  void flash_wgmma(Launch& launch) {
    const auto tensor = [&](const bf16* data) {
      return attention::heads_first(data, batch_, heads_ / batch_, length_, head_size);
    };
    const auto length = static_cast<int>(length_);
    Engine{{tensor(q_), tensor(k_), tensor(v_), tensor(o_)},
           {.mask = {},
            .keys = {length, length},
            .score = {exponent_scale},
            .order = attention::in_order(length_, heads_ / batch_, batch_)}}
        .run(launch);
  }
  void plan_cudnn(Launch&) { cudnn_->plan(); }
  void cudnn(Launch& launch) { cudnn_->run(launch.stream, q_, k_, v_, o_); }
  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    tuned_cudnn_->tune(launch.stream, q_, k_, v_, o_);
  }
  void cudnn_tuned(Launch& launch) { tuned_cudnn_->run(launch.stream, q_, k_, v_, o_); }

 private:
  // The limit for single rows: two equal weights, of which a 16th of all goes from one to the other.
  static constexpr double limit_of_rounded_scores = 0.13;
  // Spelled out because the header overloads the name.
  using StridedBatched = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                                        const void*, cudaDataType_t, int, long long, const void*, cudaDataType_t, int, long long,
                                        const void*, void*, cudaDataType_t, int, long long, int, cublasComputeType_t,
                                        cublasGemmAlgo_t);

  ResultRow expected_row(std::size_t head, std::size_t row) const {
    return reference_.row(q_, rows_.begin(head, row), head, 0, length_);
  }
  Grid tiles() const {
    const auto blocks = static_cast<unsigned>((length_ + mma_tiles::query_rows - 1) / mma_tiles::query_rows);
    return {{blocks, static_cast<unsigned>(heads_)}, mma_tiles::threads, mma_tiles::shared_bytes};
  }
  // In cuBLAS's order of columns: scores^T = K Q^T, and O^T = V^T weights^T. `b` and `c` have a column for each query.
  void multiply(Launch& launch, cublasOperation_t op_a, const bf16* a, const bf16* b, bf16* c, float alpha) {
    const bool makes_scores = op_a == CUBLAS_OP_T;
    const int length = static_cast<int>(length_), pitch = static_cast<int>(pitch_), columns = static_cast<int>(head_size);
    const auto of_head = static_cast<long long>(length_ * head_size), of_scores = static_cast<long long>(length_ * pitch_);
    const float zero = 0;
    const auto gemm = Cublas::function<StridedBatched>("cublasGemmStridedBatchedEx");
    cublas_->use(launch.stream);
    check(gemm(cublas_->handle(), op_a, CUBLAS_OP_N, makes_scores ? length : columns, length, makes_scores ? columns : length,
               &alpha, a, CUDA_R_16BF, columns, of_head, b, CUDA_R_16BF, makes_scores ? columns : pitch,
               makes_scores ? of_head : of_scores, &zero, c, CUDA_R_16BF, makes_scores ? pitch : columns,
               makes_scores ? of_scores : of_head, static_cast<int>(heads_), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }

  std::size_t batch_, heads_, length_;  // heads_: of all sequences
  std::size_t pitch_;                   // of a row of scores
  RowLayout rows_;
  Input<bf16> q_, k_, v_;
  Output<bf16> o_;
  Scratch<bf16> scores_;
  int cpus_;
  bool reproducible_;
  RowReference reference_;
  CheckedRows checked_;
  Opened<Cublas> cublas_;
  Opened<shared::CudnnAttention> cudnn_, tuned_cudnn_;
};

}  // namespace

extern constinit const Pair flash_attention_forward{
    .teaches = "the matrix of scores is quadratic traffic: with an online softmax it never leaves the chip",
    .lesson = "flash_tiles",
    .make = make<FlashAttentionForward>,
    // Its scores are rounded to bf16. In the head whose scores deviate by 8, those that count are around 24, where that is up to
    // 2^-4 and 3.6e-2 on average; a CPU that rounds where it does finds 1.5e-2 of that in its results, since in most rows one
    // weight is nearly all, and cancels. Twice that is allowed. A few rows have two nearly equal scores above 32, where roundings
    // of 2^-3 in opposite directions move a 16th of the weight from one value to the other: of values that lie 6 apart 0.375,
    // which beside a head's root mean square of 0.75 is 0.5.
    .baseline = {.name = "score_matrix",
                 .run = call<&FlashAttentionForward::score_matrix>,
                 .needs = {.libraries = {Library::cublas}},
                 .tolerance = within(3e-2, 0.5)},
    .optimized =
        variants({{.name = "flash_tiles", .run = call<&FlashAttentionForward::flash_tiles>, .kernels = {.local_bytes = 0}},
                  {.name = "flash_wgmma",
                   .run = call<&FlashAttentionForward::flash_wgmma>,
                   .needs = {.min_sm = 90, .max_sm = 90},
                   .kernels = {.local_bytes = 0}}}),
    .controls = variants({{.name = "two_pass_tiles", .run = call<&FlashAttentionForward::two_pass_tiles>}}),
    .libraries = variants({{.name = "cudnn",
                            .run = call<&FlashAttentionForward::cudnn>,
                            .prepare = call<&FlashAttentionForward::plan_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}},
                           {.name = "cudnn_tuned",
                            .run = call<&FlashAttentionForward::cudnn_tuned>,
                            .prepare = call<&FlashAttentionForward::tune_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::compute,
    // Weights and results are rounded to bf16 once each: 1.6e-3 twice, 2.3e-3 together; in the few elements of a head that are
    // sampled, twice that.
    .tolerance = within(5e-3),
    .sizes = sizes({{.name = "batch", .full = 2, .most = 256, .scales = false},
                    {.name = "heads", .full = 16, .most = 128, .scales = false},
                    {.name = "tokens", .full = 8192, .most = 32768},
                    // 1: all heads fall along the keys, so that flash_wgmma must rescale its sums in every tile; 2: they rise,
                    // so that flash_tiles must.
                    {.name = "staircase", .full = 0, .most = 2, .scales = false}}),
    // 16384 tokens in all.
    .sweep = cases({{"tokens_512", "batch=32,tokens=512"},
                    {"tokens_1024", "batch=16,tokens=1024"},
                    {"tokens_2048", "batch=8,tokens=2048"},
                    {"tokens_4096", "batch=4,tokens=4096"},
                    {"tokens_8192", "batch=2,tokens=8192"},
                    {"tokens_16384", "batch=1,tokens=16384"},
                    {"falling_8192", "batch=2,tokens=8192,staircase=1"},
                    {"rising_8192", "batch=2,tokens=8192,staircase=2"}}),
    .edges = cases({{"one_token", "batch=1,heads=1,tokens=1"},
                    {"one_head", "batch=1,heads=1,tokens=512"},
                    {"tail", "batch=1,heads=5,tokens=713"},
                    {"tail_of_64", "batch=1,heads=4,tokens=8256"},
                    {"falling", "batch=1,heads=2,tokens=1000,staircase=1"},
                    {"rising", "batch=1,heads=2,tokens=1000,staircase=2"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch18
