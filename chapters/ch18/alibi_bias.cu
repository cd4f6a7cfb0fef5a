// SPDX-License-Identifier: Apache-2.0
// Causal attention with ALiBi: a slope of the head times the distance of the key is added to each score. As a tensor of biases it
// adds a load to each score, which the softmax waits for, and half a gigabyte to what is read for each sequence. But it is linear
// in the key: a few instructions, and no load. What depends on the row cancels in the softmax, and the rest may be what sums of
// products begin with, so that it is there before they are.
#include <cuda_bf16.h>
#include <aisp/pair.hpp>

#include <cmath>
#include <string_view>

#include "attention/forward.hpp"
#include "attention_rows.hpp"
#include "cudnn_attention.hpp"

namespace aisp::ch18 {
namespace {

using attention::bf16, attention::RowBlock;

// product * scale + bias[head][row][key]. Rows and keys of a head are padded to whole tiles.
struct BiasTensor {
  float scale_log2;
  const bf16* bias;
  int pitch;
  static constexpr bool changes = true;
  struct OfHead {
    float scale_log2;
    const bf16* bias;
    int pitch;
    // Both keys of a pair read the same word, which makes it one load.
    __device__ __forceinline__ float operator()(float product, const attention::At& at) const {
      const bf16* const pair = bias + static_cast<std::size_t>(at.row) * pitch + (at.key & ~1);
      const unsigned word = *reinterpret_cast<const unsigned*>(pair);
      return fmaf(product, scale_log2, attention::log2_e * __uint_as_float(at.key % 2 == 0 ? word << 16 : word & 0xFFFF0000u));
    }
  };
  __device__ __forceinline__ float exponent_scale() const { return 1; }
  __device__ __forceinline__ OfHead of_head(int, int head) const {
    return {scale_log2, bias + static_cast<std::size_t>(head) * pitch * pitch, pitch};
  }
};

__global__ void make_bias_kernel(const float* slopes, bf16* bias, int pitch) {
  const int row = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  bf16* const to = bias + (static_cast<std::size_t>(head) * pitch + row) * pitch;
  for (int key = static_cast<int>(threadIdx.x); key < pitch; key += static_cast<int>(blockDim.x))
    to[key] = __float2bfloat16_rn(slopes[head] * static_cast<float>(key - row));
}

// The sequences of a head one after the other, so that those that run together want the same biases.
struct BatchInner : attention::LongestFirst {
  __device__ __forceinline__ RowBlock at(int turn, int block_rows) const {
    const RowBlock block = LongestFirst::at(turn, block_rows);
    const int number = block.sequence * heads + block.head;
    return {number % sequences, number / sequences, block.first_row};
  }
};

class AlibiBias final : public Workload {
 public:
  explicit AlibiBias(Setup& setup)
      : batch_{setup.size("batch")},
        heads_{setup.size("heads")},
        length_{setup.size("tokens")},
        pitch_{(length_ + attention::tile_keys - 1) / attention::tile_keys * attention::tile_keys},
        rows_{rows_of_heads(batch_ * heads_, length_)},
        q_{setup.input<bf16>(rows_.elements(), queries(rows_), {.name = "q"})},
        k_{setup.input<bf16>(rows_.elements(), keys(rows_, Along::varied), {.name = "k"})},
        v_{setup.input<bf16>(rows_.elements(), normal(0, 1), {.name = "v"})},
        slopes_{setup.input<float>(heads_, slopes(), {.name = "slopes", .constant = true})},
        o_{setup.output<bf16>(rows_.elements(), {.name = "o", .groups = rows_.head_axis()})},
        bias_{setup.scratch<bf16>(heads_ * pitch_ * pitch_, {.name = "bias"})},
        taken_{setup.scratch<unsigned>(1, {.name = "taken"})},
        cpus_{setup.cpus()},
        reproducible_{setup.reproducible()},
        reference_{rows_},
        cudnn_with_bias_{setup, sizes(), shared::Mask::causal, shared::AttentionScores{.bias_pitch = pitch_}},
        cudnn_with_slopes_{setup, sizes(), shared::Mask::causal, shared::AttentionScores{.alibi = true}} {}

  Cost cost() const override {
    const auto length = static_cast<double>(length_);
    return {.flops = 4 * static_cast<double>(rows_.heads) * length * (length + 1) / 2 * static_cast<double>(head_size),
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
    checked_.compare(o_, variant.find("bias") == std::string_view::npos ? row_limit : limit_of_rounded_bias);
  }

  void make_bias(Launch& launch) {
    launch(make_bias_kernel, {{static_cast<unsigned>(pitch_), static_cast<unsigned>(heads_)}, 256}, slopes_, bias_, pitch_);
    clear_taken(launch);
  }
  // Once: each run leaves it as it was.
  void clear_taken(Launch& launch) { check(cudaMemsetAsync(taken_, 0, taken_.bytes(), launch.stream)); }
  void bias_tensor(Launch& launch) { engine<attention::Causal>(launch, tensor_of_biases(), by_length()); }
  void bias_batch_inner(Launch& launch) { engine<attention::Causal>(launch, tensor_of_biases(), BatchInner{by_length()}); }
  void inline_slope(Launch& launch) { engine<attention::Causal>(launch, inlined(), by_length()); }
  void slope_first(Launch& launch) { engine<attention::Causal>(launch, attention::AlibiFirst{scale_log2, slopes_}, by_length()); }
  void slope_walked_up(Launch& launch) { engine<attention::Ascending<attention::Causal>>(launch, inlined(), by_length()); }
  void no_bias(Launch& launch) { engine<attention::Causal>(launch, attention::Scaled{scale_log2}, by_length()); }
  void tune_cudnn_bias(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    if (length_ != pitch_) throw Unsupported{"cuDNN 9.14 is wrong now and then where a bias ends within a tile"};
    make_bias(launch);
    cudnn_with_bias_->tune(launch.stream, q_, k_, v_, o_, bias_);
  }
  void cudnn_bias(Launch& launch) { cudnn_with_bias_->run(launch.stream, q_, k_, v_, o_, bias_); }
  void tune_cudnn_alibi(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    cudnn_with_slopes_->tune(launch.stream, q_, k_, v_, o_, slopes_);
  }
  void cudnn_alibi(Launch& launch) { cudnn_with_slopes_->run(launch.stream, q_, k_, v_, o_, slopes_); }

 private:
  static constexpr float scale_log2 = static_cast<float>(score_scale * log2_of_e);
  // The limit for single rows. Where scores deviate by 8, keys with a bias of 16 may count, which is rounded by up to 2^-5, and a
  // second one in the other direction.
  static constexpr double limit_of_rounded_bias = 6e-2;

  // From near 1 to 2^-8, as ALiBi's authors chose them.
  static HostFill<float> slopes() {
    return [](std::span<float> values, std::uint64_t) {
      for (std::size_t head = 0; head < values.size(); ++head)
        values[head] = static_cast<float>(std::exp2(-8 * static_cast<double>(head + 1) / static_cast<double>(values.size())));
    };
  }
  shared::AttentionSizes sizes() const { return {batch_, heads_, heads_, length_, length_, head_size}; }
  ResultRow expected_row(std::size_t head, std::size_t row) const {
    const double slope = slopes_.host(head % heads_);
    return reference_.row(q_, rows_.begin(head, row), head, 0, row + 1, [&](double scaled, std::size_t key) {
      return scaled + slope * (static_cast<double>(key) - static_cast<double>(row));
    });
  }

  BiasTensor tensor_of_biases() const { return {scale_log2, bias_, static_cast<int>(pitch_)}; }
  attention::Alibi inlined() const { return {scale_log2, slopes_}; }
  attention::LongestFirst by_length() const {
    return attention::longest_first(length_, length_, 2 * head_size, heads_, 1, batch_, taken_.get());
  }
  template <class Mask, class Score, class Order>
  void engine(Launch& launch, const Score& score, const Order& order) const {
    const auto tensor = [&](const bf16* data) { return attention::heads_first(data, batch_, heads_, length_, head_size); };
    const auto length = static_cast<int>(length_);
    attention::ForwardPass<head_size, head_size, Mask, attention::Dense, Score, false, Order>{
        {tensor(q_), tensor(k_), tensor(v_), tensor(o_)}, {.mask = {}, .keys = {length, length}, .score = score, .order = order}}
        .run(launch);
  }

  std::size_t batch_, heads_, length_, pitch_;
  RowLayout rows_;
  Input<bf16> q_, k_, v_;
  Input<float> slopes_;
  Output<bf16> o_;
  Scratch<bf16> bias_;
  Scratch<unsigned> taken_;
  int cpus_;
  bool reproducible_;
  RowReference reference_;
  CheckedRows checked_;
  Opened<shared::CudnnAttention> cudnn_with_bias_, cudnn_with_slopes_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};
// A bias is rounded to bf16, by 1.6e-3 of itself on average. Of weights that fall as exp(-b) those with b around 1 are the ones
// that count, so that it adds about as much as the rounding of the weights; where scores deviate by 8, up to twice that.
constexpr Tolerance with_rounded_bias = within(8e-3, 0.4);

}  // namespace

extern constinit const Pair alibi_bias{
    .teaches = "a tensor of biases puts a load before each exponential; a bias that is linear in the key needs none",
    .lesson = "inline_slope",
    .make = make<AlibiBias>,
    .baseline = {.name = "bias_tensor",
                 .run = call<&AlibiBias::bias_tensor>,
                 .prepare = call<&AlibiBias::make_bias>,
                 .tolerance = with_rounded_bias,
                 .kernels = nothing_spilled},
    .optimized = variants({{.name = "bias_batch_inner",
                            .run = call<&AlibiBias::bias_batch_inner>,
                            .prepare = call<&AlibiBias::make_bias>,
                            .tolerance = with_rounded_bias,
                            .same_bits_as = "bias_tensor",
                            .kernels = nothing_spilled},
                           {.name = "inline_slope",
                            .run = call<&AlibiBias::inline_slope>,
                            .prepare = call<&AlibiBias::clear_taken>,
                            .kernels = nothing_spilled},
                           {.name = "slope_first",
                            .run = call<&AlibiBias::slope_first>,
                            .prepare = call<&AlibiBias::clear_taken>,
                            .kernels = nothing_spilled}}),
    // Towards later keys slopes make scores grow, so that the kernel must rescale its sums; the engine walks the other way.
    .controls = variants({{.name = "slope_walked_up",
                           .run = call<&AlibiBias::slope_walked_up>,
                           .prepare = call<&AlibiBias::clear_taken>,
                           .kernels = nothing_spilled},
                          {.name = "none_added",
                           .run = call<&AlibiBias::no_bias>,
                           .prepare = call<&AlibiBias::clear_taken>,
                           .outputs = no_outputs,
                           .kernels = nothing_spilled}}),
    .libraries = variants({{.name = "cudnn_bias",
                            .run = call<&AlibiBias::cudnn_bias>,
                            .prepare = call<&AlibiBias::tune_cudnn_bias>,
                            .needs = {.libraries = {Library::cudnn}},
                            .tolerance = with_rounded_bias},
                           {.name = "cudnn_alibi",
                            .run = call<&AlibiBias::cudnn_alibi>,
                            .prepare = call<&AlibiBias::tune_cudnn_alibi>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::compute,
    .tolerance = with_short_rows,
    .needs = {.min_sm = 90, .max_sm = 90},
    // In the fourth head scores rise by 8.3 every 128 keys towards the first key, and its slope, 2^(-32 / heads), takes 128
    // slopes off. With four to eight heads that is less: the keys that count are those with the largest biases, of which bf16 is
    // off by up to 2^-9, and the result by 1e-2 and more. So it is where the fourth head is that of another sequence, with one or
    // two heads. From twelve on it is more than twice as much, and biases beyond 16 do not count.
    .sizes = sizes({{.name = "batch", .full = 4, .most = 256, .scales = false},
                    {.name = "heads", .full = 32, .least = 12, .most = 256, .scales = false},
                    {.name = "tokens", .full = 4096, .most = 32768}}),
    // The first three do as many products, the others have as many tokens.
    .sweep = cases({{"batch_1", "batch=1,tokens=8192"},
                    {"batch_4", "batch=4,tokens=4096"},
                    {"batch_16", "batch=16,tokens=2048"},
                    {"tokens_1024", "batch=16,tokens=1024"},
                    {"tokens_16384", "batch=1,tokens=16384"}}),
    .edges = cases({{"one_token", "batch=1,heads=12,tokens=1"},
                    {"one_sequence", "batch=1,heads=12,tokens=512"},
                    {"tail", "batch=2,heads=13,tokens=713"}}),
    .reference_samples = 4096,
};

}  // namespace aisp::ch18
