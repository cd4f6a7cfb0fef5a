// SPDX-License-Identifier: Apache-2.0
// One step of decoding with multi-head latent attention: a token's cache is 576 numbers, from which 128 heads make their keys and
// values. Kept as those it is 71 times as large, and each head reads its own; made anew in each step they cost more arithmetic
// than attention does. Applied to the query and to the result instead, the matrices leave one key and one value for all heads:
// the cache is read once, for products of 128 rows that keep tensor cores as busy as memory.
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/mla.hpp"
#include "cudnn_attention.hpp"
#include "expanded_cache.cuh"
#include "latent_projections.cuh"
#include "latent_tiles.cuh"
#include "row_cache.hpp"

namespace aisp::ch18 {
namespace {

using namespace attention;

using enum MlaSchedule;

constexpr int heads = 128;

class MlaDecode final : public Workload {
 public:
  explicit MlaDecode(Setup& setup)
      : batch_{setup.size("batch")},
        tokens_{setup.size("context")},
        short_{setup.size("short") != 0},
        splits_{
            static_cast<int>(std::clamp<std::size_t>(multiprocessors() * mla_heads / (batch_ * heads), 1, (tokens_ + 63) / 64))},
        q_{setup.input<bf16>(
            batch_ * heads * query_size,
            normal(0, 1).set(staircase_query, at(Axis{heads * query_size, batch_}, 2, 2), at(Axis{1, query_size}, plain_size)),
            {.name = "q"})},
        latents_{setup.input<bf16>(batch_ * tokens_ * mla_key_size, latents(), {.name = "latents", .constant = true})},
        matrices_{setup.input<bf16>(std::size_t{heads} * matrix_rows * latent_size,
                                    normal(0, 1 / std::sqrt(static_cast<float>(latent_size))),
                                    {.name = "matrices", .constant = true})},
        lengths_{setup.input<int>(batch_, HostFill<int>{[this](std::span<int> values, std::uint64_t) {
                                    for (std::size_t s = 0; s < values.size(); ++s) values[s] = static_cast<int>(length(s));
                                  }},
                                  {.name = "lengths", .constant = true})},
        o_{setup.output<bf16>(batch_ * heads * value_size, {.name = "o", .groups = {heads * value_size, batch_}})},
        k_{setup.scratch<bf16>(batch_ * heads * tokens_ * query_size, {.name = "keys of all heads"})},
        v_{setup.scratch<bf16>(batch_ * heads * tokens_ * value_size, {.name = "values of all heads"})},
        absorbed_{setup.scratch<bf16>(batch_ * heads * mla_key_size, {.name = "absorbed queries"})},
        parts_{setup.scratch<float>(states() * heads * latent_size, {.name = "results of pieces"})},
        log_sums_{setup.scratch<float>(states() * heads, {.name = "log-sum-exps of pieces"})},
        merged_{setup.scratch<bf16>(batch_ * heads * latent_size, {.name = "merged results"})},
        reproducible_{setup.reproducible()},
        cublas_{setup},
        cudnn_{setup, shared::AttentionSizes{batch_, heads, heads, 1, tokens_, query_size, value_size}} {}

  // Attention is that over latents, with one projection before and one after it.
  void metrics(std::string_view variant, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(batch_), "tokens of a layer/s");
    metrics.report("bytes_per_token", variant_cost(variant).bytes / static_cast<double>(batch_), "bytes", Metrics::Better::lower);
  }
  Cost cost() const override {
    const double rows = keys(), all = static_cast<double>(batch_) * heads;
    return {.flops = 2 * heads * rows * (mla_key_size + latent_size) + 2 * all * latent_size * matrix_rows,
            .math = Math::bf16,
            .bytes = rows * mla_key_size * sizeof(bf16) + static_cast<double>(q_.bytes() + matrices_.bytes() + o_.bytes())};
  }
  Cost variant_cost(std::string_view variant) const override {
    const double rows = keys() * heads, attention = 2 * rows * (query_size + value_size);
    if (variant == "expanded" || variant == "cudnn_expanded")
      return {.flops = attention,
              .math = Math::bf16,
              .bytes = rows * (query_size + value_size) * sizeof(bf16) + static_cast<double>(q_.bytes() + o_.bytes())};
    Cost cost = this->cost();
    if (variant == "latent_expanded") cost.flops = attention + 2 * rows * latent_size * matrix_rows;
    if (variant == "attention_alone") {
      cost.flops = 2 * rows * (mla_key_size + latent_size);
      cost.bytes = keys() * mla_key_size * sizeof(bf16) + static_cast<double>(absorbed_.bytes());
    }
    return cost;
  }
  void compute_reference(Launch&) override {
    rows_.forget(batch_ * heads);
    cached_.forget(batch_);
  }
  double expected(std::size_t i) const override {
    return rows_.of(i / value_size, [&] { return expected_row(i / value_size / heads, i / value_size % heads); })[i % value_size];
  }

  // Keys and values of all heads, as they are cached where nothing is absorbed.
  void expand(Launch& launch) {
    launch(spread_kernel, {dim3{static_cast<unsigned>(tokens_), static_cast<unsigned>(batch_)}, spread_threads}, latents_.get(),
           k_.get(), heads);
    for (std::size_t s = 0; s < batch_; ++s) {
      multiply(launch, s, 0, k_.get() + s * heads * tokens_ * query_size, query_size);
      multiply(launch, s, plain_size, v_.get() + s * heads * tokens_ * value_size, value_size);
    }
  }
  void expanded(Launch& launch) {
    launch(expanded_kernel, {dim3{heads, static_cast<unsigned>(batch_)}, expanded_threads},
           Expanded{q_, k_, v_, lengths_, o_, static_cast<int>(tokens_), scale_log2()});
  }
  void latent_expanded(Launch& launch) {
    expand(launch);
    expanded(launch);
  }
  void absorbed_mma(Launch& launch) {
    absorb(launch);
    attend_mma(launch);
    merge(launch);
    project(launch);
  }
  void attend_mma(Launch& launch) {
    launch(latent_tiles_kernel<FixedSplits>, {mla_grid(heads, states()).blocks, latent_threads, sizeof(LatentTiles)},
           absorbed_.get(), latents_.get(), tokens_, work());
  }
  void map_tensors(Launch&) { maps_ = mla_maps(absorbed_, latents_, batch_, heads, tokens_); }
  template <MlaSchedule schedule>
  void absorbed(Launch& launch) {
    absorb(launch);
    attend<schedule>(launch);
    merge(launch);
    project(launch);
  }
  template <MlaSchedule schedule>
  void attend(Launch& launch) {
    launch(mla_kernel<schedule, false, FixedSplits>, mla_grid(heads, states()), maps_, work());
  }
  void absorbed_pdl(Launch& launch) {
    attend_behind(launch);
    launch(merge_latents_kernel<true, FixedSplits>, overlapping(merge_grid()), splits(), parts_.get(), log_sums_.get(), heads,
           merged_.get());
    launch(project_kernel<true, MergedLatents>, overlapping({heads, projection_threads}), MergedLatents{merged_}, matrices_.get(),
           o_.get(), batch_);
  }
  void merged_projection(Launch& launch) {
    attend_behind(launch);
    launch(project_kernel<true, LatentStates<FixedSplits>>, overlapping({heads, projection_threads}),
           LatentStates<FixedSplits>{splits(), parts_, log_sums_}, matrices_.get(), o_.get(), batch_);
  }
  void absorb(Launch& launch) {
    launch(absorb_kernel, {heads, projection_threads}, q_.get(), matrices_.get(), absorbed_.get(), batch_);
  }
  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    if (short_) throw Unsupported{"this graph knows no lengths"};
    expand(launch);
    cudnn_->tune(launch.stream, q_, k_, v_, o_);
  }
  void cudnn_expanded(Launch& launch) { cudnn_->run(launch.stream, q_, k_, v_, o_); }

 private:
  static constexpr float staircase_query = 8;
  static float scale_log2() { return log2_e / std::sqrt(static_cast<float>(query_size)); }
  std::size_t length(std::size_t sequence) const {
    constexpr std::size_t planted[] = {1, 63, 64, 65};
    return short_ && sequence < 4 ? std::min(planted[sequence], tokens_) : tokens_;
  }
  double keys() const {
    double count = 0;
    for (std::size_t s = 0; s < batch_; ++s) count += static_cast<double>(length(s));
    return count;
  }
  std::size_t states() const { return batch_ * static_cast<std::size_t>(splits_); }
  FixedSplits splits() const { return {lengths_, splits_}; }
  Mla<FixedSplits> work() const { return {splits(), heads, scale_log2(), parts_, log_sums_}; }
  Grid merge_grid() const { return {dim3{heads / merge_warps, static_cast<unsigned>(batch_)}, merge_warps * 32}; }
  static Grid overlapping(Grid grid) {
    grid.overlapping = true;
    return grid;
  }
  void attend_behind(Launch& launch) {
    absorb(launch);
    launch(mla_kernel<late_half, true, FixedSplits>, overlapping(mla_grid(heads, states())), maps_, work());
  }
  void merge(Launch& launch) {
    launch(merge_latents_kernel<false, FixedSplits>, merge_grid(), splits(), parts_.get(), log_sums_.get(), heads, merged_.get());
  }
  void project(Launch& launch) {
    launch(project_kernel<false, MergedLatents>, {heads, projection_threads}, MergedLatents{merged_}, matrices_.get(), o_.get(),
           batch_);
  }

  // Spelled out because the header overloads the name.
  using StridedBatched = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                                        const void*, cudaDataType_t, int, long long, const void*, cudaDataType_t, int, long long,
                                        const void*, void*, cudaDataType_t, int, long long, int, cublasComputeType_t,
                                        cublasGemmAlgo_t);
  // Multiplies the latents of all heads by the matrix's rows from `first_row` on, to rows of `pitch` columns.
  void multiply(Launch& launch, std::size_t sequence, int first_row, bf16* to, int pitch) {
    const auto gemm = Cublas::function<StridedBatched>("cublasGemmStridedBatchedEx");
    const float one = 1, zero = 0;
    const int tokens = static_cast<int>(tokens_);
    cublas_->use(launch.stream);
    check(gemm(cublas_->handle(), CUBLAS_OP_T, CUBLAS_OP_N, plain_size, tokens, latent_size, &one,
               matrices_.get() + first_row * latent_size, CUDA_R_16BF, latent_size, matrix_rows * latent_size,
               latents_.get() + sequence * tokens_ * mla_key_size, CUDA_R_16BF, mla_key_size, 0, &zero, to, CUDA_R_16BF, pitch,
               static_cast<long long>(tokens_) * pitch, heads, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }

  // One of the sequences has keys that grow along its tokens, one has such that shrink, and in two the first rotated dimension is
  // a staircase, up and down. The rotated part weighs most.
  Pattern latents() const {
    const Axis sequences{tokens_ * mla_key_size, batch_}, rows{mla_key_size, tokens_}, columns{1, mla_key_size};
    const Pattern rotated = normal(0, 1).times(2, at(columns, latent_size, rotated_size));
    if (short_) {
      Pattern pattern = rotated;
      for (std::size_t s = 0; s < std::min<std::size_t>(4, batch_); ++s)
        if (length(s) < tokens_)
          pattern =
              pattern.set(std::numeric_limits<float>::quiet_NaN(), at(rows, length(s), tokens_ - length(s)), at(sequences, s));
      return pattern;
    }
    const float step = 12 / (staircase_query * scale_log2());
    const std::uint64_t run = std::max<std::uint64_t>(128, tokens_ / 64);
    return rotated.times(1, 8, all_of(rows), at(sequences, 0))
        .times(8, 1, all_of(rows), at(sequences, 1))
        .plus_steps(step, run, all_of(rows), at(sequences, 2), at(columns, latent_size))
        .plus_steps(-step, run, all_of(rows), at(sequences, 3), at(columns, latent_size));
  }

  using Row = std::array<double, value_size>;
  // With the matrices applied to query and result: in float64 the same as with keys and values.
  Row expected_row(std::size_t sequence, std::size_t head) const {
    const std::vector<float>& cached = cached_.of(sequence, [&] {
      std::vector<float> all(length(sequence) * mla_key_size);
      for (std::size_t i = 0; i < all.size(); ++i)
        all[i] = static_cast<float>(latents_.host(sequence * tokens_ * mla_key_size + i));
      return all;
    });
    const auto matrix = [&](std::size_t row, std::size_t c) {
      return matrices_.host((head * matrix_rows + row) * latent_size + c);
    };
    const auto query = [&](std::size_t d) {
      return q_.host((sequence * heads + head) * query_size + d) / std::sqrt(static_cast<double>(query_size));
    };
    std::vector<double> q(mla_key_size), latent(latent_size), scores(length(sequence));
    for (std::size_t n = 0; n < plain_size; ++n)
      for (std::size_t c = 0; c < latent_size; ++c) q[c] += query(n) * matrix(n, c);
    for (std::size_t d = 0; d < rotated_size; ++d) q[latent_size + d] = query(plain_size + d);
    for (std::size_t t = 0; t < scores.size(); ++t)
      for (std::size_t c = 0; c < mla_key_size; ++c) scores[t] += q[c] * double{cached[t * mla_key_size + c]};
    const double maximum = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (std::size_t t = 0; t < scores.size(); ++t) {
      const double weight = std::exp(scores[t] - maximum);
      sum += weight;
      if (weight > 1e-20)  // less is lost in float64, too
        for (std::size_t c = 0; c < latent_size; ++c) latent[c] += weight * double{cached[t * mla_key_size + c]};
    }
    Row result{};
    for (std::size_t v = 0; v < value_size; ++v) {
      for (std::size_t c = 0; c < latent_size; ++c) result.at(v) += latent[c] * matrix(plain_size + v, c);
      result.at(v) /= sum;
    }
    return result;
  }

  std::size_t batch_, tokens_;
  bool short_;
  int splits_;
  Input<bf16> q_, latents_, matrices_;  // [sequence][head][query_size], [sequence][token][mla_key_size], [head][matrix_rows][...]
  Input<int> lengths_;
  Output<bf16> o_;
  Scratch<bf16> k_, v_, absorbed_;
  Scratch<float> parts_, log_sums_;
  Scratch<bf16> merged_;
  bool reproducible_;
  MlaMaps maps_{};
  Opened<Cublas> cublas_;
  Opened<shared::CudnnAttention> cudnn_;
  shared::RowCache<Row> rows_;
  shared::RowCache<std::vector<float>> cached_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};
constexpr Needs hopper{.min_sm = 90, .max_sm = 90};

}  // namespace

extern constinit const Pair mla_decode{
    .teaches = "multi-head latent attention caches one latent a token; absorbed projections let 128 heads share it",
    .lesson = "absorbed_mma",
    .make = make<MlaDecode>,
    .baseline = {.name = "expanded",
                 .run = call<&MlaDecode::expanded>,
                 .prepare = call<&MlaDecode::expand>,
                 .needs = {.libraries = {Library::cublas}},
                 .kernels = nothing_spilled},
    .optimized = variants({{.name = "absorbed_mma", .run = call<&MlaDecode::absorbed_mma>, .kernels = nothing_spilled},
                           {.name = "absorbed_wgmma",
                            .run = call<&MlaDecode::absorbed<one_softmax>>,
                            .prepare = call<&MlaDecode::map_tensors>,
                            .needs = hopper,
                            .kernels = nothing_spilled},
                           {.name = "late_half",
                            .run = call<&MlaDecode::absorbed<late_half>>,
                            .prepare = call<&MlaDecode::map_tensors>,
                            .needs = hopper,
                            .same_bits_as = "absorbed_wgmma",
                            .kernels = nothing_spilled},
                           {.name = "absorbed_pdl",
                            .run = call<&MlaDecode::absorbed_pdl>,
                            .prepare = call<&MlaDecode::map_tensors>,
                            .needs = hopper,
                            .same_bits_as = "absorbed_wgmma",
                            .kernels = nothing_spilled},
                           {.name = "merged_projection",
                            .run = call<&MlaDecode::merged_projection>,
                            .prepare = call<&MlaDecode::map_tensors>,
                            .needs = hopper,
                            .same_bits_as = "absorbed_wgmma",
                            .kernels = nothing_spilled}}),
    // The small cache alone; FlashMLA's schedule; the attention without what surrounds it.
    .controls = variants({{.name = "latent_expanded",
                           .run = call<&MlaDecode::latent_expanded>,
                           .needs = {.libraries = {Library::cublas}},
                           .same_bits_as = "expanded"},
                          {.name = "seesaw",
                           .run = call<&MlaDecode::absorbed<seesaw>>,
                           .prepare = call<&MlaDecode::map_tensors>,
                           .needs = hopper,
                           .kernels = nothing_spilled},
                          {.name = "attention_alone",
                           .run = call<&MlaDecode::attend<late_half>>,
                           .prepare = call<&MlaDecode::map_tensors>,
                           .reset = call<&MlaDecode::absorb>,
                           .needs = hopper,
                           .outputs = no_outputs,
                           .kernels = nothing_spilled}}),
    .libraries = variants({{.name = "cudnn_expanded",
                            .run = call<&MlaDecode::cudnn_expanded>,
                            .prepare = call<&MlaDecode::tune_cudnn>,
                            .needs = {.libraries = {Library::cudnn, Library::cublas}}}}),
    .bound = Bound::memory,
    // Keys and values, or the absorbed query, the weights and the result between, and the results are rounded to bf16. A score
    // that is off by 2^-9 of itself matters where the keys of a sequence have grown: a CPU that rounds where the kernels do finds
    // 6e-3 over such a sequence, and 2e-2 in single rows of it. The norm is of a sequence; without the rotated part it is over
    // 0.5.
    .tolerance = within(1.5e-2),
    .sizes = sizes({{.name = "batch", .full = 16, .most = 256},
                    {.name = "context", .full = 4096, .most = 32768, .scales = false},
                    // 1: the first sequences have 1, 63, 64 and 65 tokens.
                    option("short")}),
    .sweep = cases({{"batch_1", "batch=1"},
                    {"batch_4", "batch=4"},
                    {"batch_16", "batch=16"},
                    {"batch_64", "batch=64"},
                    {"batch_128", "batch=128"}}),
    .edges = cases({{"one_token", "batch=1,context=1"},
                    {"short_sequences", "batch=6,context=129,short=1"},
                    {"short_ones_of_sixteen", "batch=16,context=700,short=1"},
                    {"uneven_pieces", "batch=19,context=1001"},
                    {"one_piece", "batch=67,context=321"}}),
    .reference_samples = 512,
};

}  // namespace aisp::ch18
