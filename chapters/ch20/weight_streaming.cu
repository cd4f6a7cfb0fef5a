// SPDX-License-Identifier: Apache-2.0
// Six layers of a 3B model whose weights stay in pinned host memory, 201 MB a layer, and 8192 tokens of four prompts. Copied and
// then computed, a layer keeps the link busy or the SMs, never both. With room for two layers the next one is copied while one is
// computed, and the link alone decides. Weights in e4m3 are half as long on the link and become bf16 where they arrive.
#include <aisp/device/vector.cuh>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <vector>

#include <cuda_fp8.h>

#include "attention/cache.cuh"
#include "decoder/arrange.hpp"
#include "decoder/model.hpp"
#include "decoder/reference.cuh"

namespace aisp::ch20 {
namespace {

using namespace decoder;
using attention::ContiguousCache;
using e4m3 = __nv_fp8_e4m3;
constexpr Shape one_layer = layers_of_3b(1);
constexpr std::size_t slots = 2, hidden = one_layer.hidden, most_layers = 16;
constexpr unsigned threads = 256;
constexpr float largest_e4m3 = 448;

// One of a layer's matrices, [outputs][depth], in a layer's memory: where its elements and its rows' scales begin.
struct Matrix {
  std::size_t outputs, depth, first, first_row;
  constexpr std::size_t elements() const { return outputs * depth; }
};
constexpr std::array<Matrix, 4> matrices = [] {
  constexpr std::size_t ffn = one_layer.ffn;
  std::array<Matrix, 4> all{{{one_layer.qkv_columns(), hidden, 0, 0},
                             {hidden, one_layer.q_columns(), 0, 0},
                             {2 * ffn, hidden, 0, 0},
                             {hidden, ffn, 0, 0}}};
  for (std::size_t i = 1; i < all.size(); ++i) {
    all[i].first = all[i - 1].first + all[i - 1].elements();
    all[i].first_row = all[i - 1].first_row + all[i - 1].outputs;
  }
  return all;
}();
constexpr std::size_t layer_elements = matrices.back().first + matrices.back().elements(),
                      layer_rows = matrices.back().first_row + matrices.back().outputs,
                      code_bytes = layer_elements + layer_rows * sizeof(float);  // e4m3, then a scale for each row

// Rounds a row to e4m3 with a scale of its own. A block for each row.
__global__ __launch_bounds__(threads) void quantize_kernel(const uint4* weights, uint2* codes, float* scales, int packets) {
  __shared__ float of_warps[device::largest_block_in_warps];
  const std::size_t row = std::size_t{blockIdx.x} * packets;
  float amax = 0, x[shared::packet];
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += threads) {
    shared::unpack(weights[row + i], x);
#pragma unroll
    for (const float value : x) amax = fmaxf(amax, fabsf(value));
  }
  amax = device::block_max(amax, 0.0f, of_warps);
  const float by = amax > 0 ? largest_e4m3 / amax : 0;
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += threads) {
    shared::unpack(weights[row + i], x);
    codes[row + i] = {device::narrow_e4m3(x[0] * by, x[1] * by) | device::narrow_e4m3(x[2] * by, x[3] * by) << 16,
                      device::narrow_e4m3(x[4] * by, x[5] * by) | device::narrow_e4m3(x[6] * by, x[7] * by) << 16};
  }
  if (threadIdx.x == 0) scales[blockIdx.x] = amax / largest_e4m3;
}

// Back to bf16. A block for each row, 16 codes a thread at a time.
__global__ __launch_bounds__(threads) void dequantize_kernel(const uint4* codes, const float* scales, uint4* weights,
                                                             int pieces) {
  const std::size_t row = std::size_t{blockIdx.x} * pieces;
  const float scale = scales[blockIdx.x];
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += threads) {
    const uint4 piece = codes[row + i];
    const auto* const code = reinterpret_cast<const e4m3*>(&piece);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x[shared::packet];
#pragma unroll
      for (int k = 0; k < shared::packet; ++k) x[k] = static_cast<float>(code[half * shared::packet + k]) * scale;
      weights[(row + i) * 2 + half] = shared::pack(x);
    }
  }
}

class WeightStreaming final : public Workload {
 public:
  explicit WeightStreaming(Setup& setup)
      : layers_{setup.shape(setup.size("layers"), std::min<std::size_t>(setup.size("layers"), 2))},
        shape_{layers_of_3b(static_cast<int>(layers_))},
        prompts_{static_cast<int>(setup.size("prompts"))},
        length_{
            static_cast<int>(setup.shape(setup.size("prompt_tokens"), std::min<std::size_t>(setup.size("prompt_tokens"), 48)))},
        rows_{prompts_ * length_},
        model_{setup, shape_, {.rows = rows_, .chosen = 1, .positions = length_, .split_rows = 1}},
        lt_{setup},
        cublas_{setup},
        memory_{setup, rows_},
        tokens_{setup.input<int>(static_cast<std::size_t>(rows_), integers(0, shape_.vocabulary() - 1), {.name = "tokens"})},
        out_{setup.output<bf16>(static_cast<std::size_t>(rows_) * hidden, {.name = "normed states"})},
        keys_{setup.scratch<bf16>(2 * static_cast<std::size_t>(rows_ * shape_.kv_columns()))},
        host_weights_{setup.scratch<bf16>(layers_ * layer_elements, {.name = "weights of the host", .memory = Memory::pinned})},
        host_codes_{setup.scratch<std::byte>(layers_ * code_bytes, {.name = "codes of the host", .memory = Memory::pinned})},
        slots_{setup.scratch<bf16>(slots * layer_elements)},
        code_slots_{setup.scratch<std::byte>(slots * code_bytes)},
        dequantized_{setup.scratch<bf16>(setup.shape(1, layers_ * layer_elements))},
        copies_{setup.stream()},
        forked_{setup.event()} {
    for (auto* events : {&arrived_, &used_})
      for (cudaEvent_t& event : *events) event = setup.event();
  }

  Cost cost() const override { return cost_of(layer_elements * sizeof(bf16)); }
  Cost variant_cost(std::string_view variant) const override {
    if (variant == "resident") return cost_of(0);
    return variant == "prefetch_fp8" || variant == "serial_fp8" ? cost_of(code_bytes) : cost();
  }
  // At the check shape, where all of it fits: from the weights, and from what becomes of them in e4m3.
  void compute_reference(Launch& launch) override {
    std::vector<int> tokens, lengths(static_cast<std::size_t>(prompts_), length_);
    for (std::size_t i = 0; i < tokens_.size(); ++i) tokens.push_back(tokens_.host(i));
    Weights weights = model_.weights();
    expected_ = reference::forward(*cublas_, launch.stream, shape_, weights, tokens, lengths).normed;
    const std::array all{&weights.qkv, &weights.o, &weights.gate_up, &weights.down};
    bf16* to = dequantized_;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::size_t elements = matrices[i].elements();
      for (std::size_t layer = 0; layer < layers_; ++layer) {
        quantize(launch.stream, *all[i] + layer * elements, matrices[i], code_slots_);
        dequantize(launch.stream, code_slots_, matrices[i], to + layer * elements);
      }
      *all[i] = to;
      to += layers_ * elements;
    }
    expected_of_codes_ = reference::forward(*cublas_, launch.stream, shape_, weights, tokens, lengths).normed;
  }
  double expected(std::size_t i) const override { return expected_[i]; }
  double expected_quantized(std::string_view, int, std::size_t i) const override { return expected_of_codes_[i]; }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("token rate", static_cast<double>(rows_), "tokens/s");
    metrics.report_rate("layer rate", static_cast<double>(layers_), "layers/s");
  }

  // All layers to the host, as bf16 or as codes.
  void offload(Launch& launch) {
    prepare_model(launch);
    const auto all = originals();
    for (std::size_t layer = 0; layer < layers_; ++layer)
      for (std::size_t i = 0; i < matrices.size(); ++i)
        check(cudaMemcpyAsync(host_weights_ + layer * layer_elements + matrices[i].first, all[i] + layer * matrices[i].elements(),
                              matrices[i].elements() * sizeof(bf16), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
  }
  void offload_codes(Launch& launch) {
    prepare_model(launch);
    const auto all = originals();
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      for (std::size_t i = 0; i < matrices.size(); ++i)
        quantize(launch.stream, all[i] + layer * matrices[i].elements(), matrices[i], code_slots_);
      check(cudaMemcpyAsync(host_codes_ + layer * code_bytes, code_slots_, code_bytes, cudaMemcpyDeviceToHost, launch.stream));
    }
    check(cudaStreamSynchronize(launch.stream));
  }
  void prepare_model(Launch& launch) {
    model_.clear(launch.stream);
    model_.tune(*lt_, launch.stream, rows_, 0);
    std::vector<Span> spans;
    for (int p = 0; p < prompts_; ++p) spans.push_back({p, 0, length_, false});
    batch_ = memory_.upload(launch.stream, shape_, Arranged{shape_, spans});
  }
  // NaN, so that a layer that is computed before its weights have come shows.
  void poison(Launch& launch) {
    check(cudaMemsetAsync(slots_, 0xff, slots_.bytes(), launch.stream));
    check(cudaMemsetAsync(code_slots_, 0xff, code_slots_.bytes(), launch.stream));
  }

  void copy_then_compute(Launch& launch) {
    begin(launch.stream);
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      copy(layer, 0, launch.stream);
      compute(launch.stream, layer, slots_);
    }
    end(launch.stream);
  }
  void serial_fp8(Launch& launch) {
    begin(launch.stream);
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      copy_codes(layer, 0, launch.stream);
      expand(launch.stream, 0);
      compute(launch.stream, layer, slots_);
    }
    end(launch.stream);
  }
  void prefetch(Launch& launch) {
    pipeline(
        launch.stream, [this](std::size_t layer, std::size_t slot, cudaStream_t stream) { copy(layer, slot, stream); },
        [this](std::size_t layer, std::size_t slot, cudaStream_t stream) {
          compute(stream, layer, slots_ + slot * layer_elements);
        });
  }
  void prefetch_fp8(Launch& launch) {
    pipeline(
        launch.stream, [this](std::size_t layer, std::size_t slot, cudaStream_t stream) { copy_codes(layer, slot, stream); },
        [this](std::size_t layer, std::size_t slot, cudaStream_t stream) {
          expand(stream, slot);
          compute(stream, layer, slots_);
        });
  }
  void resident(Launch& launch) {
    begin(launch.stream);
    const auto all = originals();
    for (std::size_t layer = 0; layer < layers_; ++layer)
      compute(launch.stream, layer,
              {all[0] + layer * matrices[0].elements(), all[1] + layer * matrices[1].elements(),
               all[2] + layer * matrices[2].elements(), all[3] + layer * matrices[3].elements()});
    end(launch.stream);
  }

 private:
  using LayerWeights = std::array<const bf16*, matrices.size()>;

  Cost cost_of(std::size_t bytes) const {
    const double pairs = 0.5 * static_cast<double>(length_) * static_cast<double>(length_ + 1) * prompts_;
    return {.flops = static_cast<double>(layers_) * (2.0 * rows_ * shape_.layer_weights() + 4.0 * pairs * shape_.q_columns()),
            .math = Math::bf16,
            .host_to_device = static_cast<double>(layers_ * bytes)};
  }
  LayerWeights originals() const {
    const Weights all = model_.weights();
    return {all.qkv, all.o, all.gate_up, all.down};
  }
  static float* scales(std::byte* codes) { return reinterpret_cast<float*>(codes + layer_elements); }
  static void quantize(cudaStream_t stream, const bf16* weights, const Matrix& matrix, std::byte* codes) {
    launch_kernel(stream, quantize_kernel, {static_cast<unsigned>(matrix.outputs), threads},
                  reinterpret_cast<const uint4*>(weights), reinterpret_cast<uint2*>(codes + matrix.first),
                  scales(codes) + matrix.first_row, matrix.depth / shared::packet);
  }
  static void dequantize(cudaStream_t stream, std::byte* codes, const Matrix& matrix, bf16* weights) {
    launch_kernel(stream, dequantize_kernel, {static_cast<unsigned>(matrix.outputs), threads},
                  reinterpret_cast<const uint4*>(codes + matrix.first), scales(codes) + matrix.first_row,
                  reinterpret_cast<uint4*>(weights), matrix.depth / (2 * shared::packet));
  }
  void expand(cudaStream_t stream, std::size_t slot) const {
    for (const Matrix& matrix : matrices) dequantize(stream, code_slots_ + slot * code_bytes, matrix, slots_ + matrix.first);
  }
  void copy(std::size_t layer, std::size_t slot, cudaStream_t stream) const {
    check(cudaMemcpyAsync(slots_ + slot * layer_elements, host_weights_ + layer * layer_elements, layer_elements * sizeof(bf16),
                          cudaMemcpyHostToDevice, stream));
  }
  void copy_codes(std::size_t layer, std::size_t slot, cudaStream_t stream) const {
    check(cudaMemcpyAsync(code_slots_ + slot * code_bytes, host_codes_ + layer * code_bytes, code_bytes, cudaMemcpyHostToDevice,
                          stream));
  }

  // Copies run ahead as far as there are slots: a slot is filled again when its layer has been computed.
  template <class Copy, class Use>
  void pipeline(cudaStream_t stream, const Copy& copy_layer, const Use& use) {
    check(cudaEventRecord(forked_, stream));
    check(cudaStreamWaitEvent(copies_, forked_));
    begin(stream);
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      const std::size_t slot = layer % slots;
      if (layer >= slots) check(cudaStreamWaitEvent(copies_, used_[layer - slots]));
      copy_layer(layer, slot, copies_);
      check(cudaEventRecord(arrived_[layer], copies_));
      check(cudaStreamWaitEvent(stream, arrived_[layer]));
      use(layer, slot, stream);
      check(cudaEventRecord(used_[layer], stream));
    }
    end(stream);
  }

  Step<ContiguousCache> step() const {
    const std::size_t head_size = shape_.head_size, head = head_size * static_cast<std::size_t>(length_);
    const ContiguousCache cache{keys_, keys_ + keys_.size() / 2, head_size, head, head * shape_.kv_heads};
    Step<ContiguousCache> step{model_.model(), batch_, cache, 0, nullptr, false, false};
    step.batch.tokens = const_cast<int*>(tokens_.get());
    return step;
  }
  void begin(cudaStream_t stream) const { step().embed(stream); }
  void compute(cudaStream_t stream, std::size_t layer, const bf16* weights) const {
    compute(stream, layer, {weights, weights + matrices[1].first, weights + matrices[2].first, weights + matrices[3].first});
  }
  // As the first of the layers that are left.
  void compute(cudaStream_t stream, std::size_t layer, const LayerWeights& of) const {
    Step<ContiguousCache> now = step();
    Weights& weights = now.model.weights;
    weights.qkv = of[0], weights.o = of[1], weights.gate_up = of[2], weights.down = of[3];
    weights.norms += 2 * layer * hidden;
    now.model.shape.layers = static_cast<int>(layers_ - layer);
    now.project(stream, 0);
    now.append(stream, 0);
    now.attend(stream, 0);
    now.finish(stream, 0);
  }
  void end(cudaStream_t stream) const {
    const Model model = model_.model();
    launch_kernel(stream, norm_kernel, {static_cast<unsigned>(rows_), norm_threads},
                  Norm{nullptr, nullptr, model.workspace.delta, model.workspace.x, out_,
                       model.weights.norms + 2 * layers_ * hidden, nullptr, static_cast<int>(hidden)});
  }

  std::size_t layers_;
  Shape shape_;
  int prompts_, length_, rows_;
  Buffers model_;
  Opened<CublasLt> lt_;
  Opened<Cublas> cublas_;
  BatchMemory memory_;
  Input<int> tokens_;
  Output<bf16> out_;
  Scratch<bf16> keys_, host_weights_;
  Scratch<std::byte> host_codes_;
  Scratch<bf16> slots_;
  Scratch<std::byte> code_slots_;
  Scratch<bf16> dequantized_;
  cudaStream_t copies_;
  cudaEvent_t forked_;
  std::array<cudaEvent_t, most_layers> arrived_{}, used_{};
  Batch batch_;
  std::vector<double> expected_, expected_of_codes_;
};

}  // namespace

extern constinit const Pair weight_streaming{
    .teaches =
        "weights in host memory bound a layer's time by the link; a copy that runs ahead hides the computing, and fewer bits "
        "shorten the copy",
    .lesson = "prefetch",
    .make = make<WeightStreaming>,
    .baseline = {.name = "copy_then_compute",
                 .run = call<&WeightStreaming::copy_then_compute>,
                 .prepare = call<&WeightStreaming::offload>,
                 .reset = call<&WeightStreaming::poison>},
    .optimized = variants({{.name = "prefetch",
                            .run = call<&WeightStreaming::prefetch>,
                            .prepare = call<&WeightStreaming::offload>,
                            .reset = call<&WeightStreaming::poison>,
                            .same_bits_as = "copy_then_compute"},
                           {.name = "prefetch_fp8",
                            .run = call<&WeightStreaming::prefetch_fp8>,
                            .prepare = call<&WeightStreaming::offload_codes>,
                            .reset = call<&WeightStreaming::poison>,
                            .changes_precision = true}}),
    // Fewer bits without a copy that runs ahead; and the layers without any copy.
    .controls = variants({{.name = "serial_fp8",
                           .run = call<&WeightStreaming::serial_fp8>,
                           .prepare = call<&WeightStreaming::offload_codes>,
                           .reset = call<&WeightStreaming::poison>,
                           .changes_precision = true,
                           .same_bits_as = "prefetch_fp8"},
                          {.name = "resident",
                           .run = call<&WeightStreaming::resident>,
                           .prepare = call<&WeightStreaming::prepare_model>,
                           .same_bits_as = "copy_then_compute"}}),
    .bound = Bound::transfer,
    // States are rounded to bf16 about three times in each half of a layer: the square root of 36 roundings of 1.6e-3, and half
    // as much again.
    .tolerance = within(1.5e-2, 0.2),
    .needs = {.min_sm = 90, .libraries = {Library::cublas, Library::cublaslt}},
    .start = Start::immediate,
    .verification = Verification::small_shape,
    .timeline = true,
    .overrides = {.iterations = 10},
    .sizes = sizes({{.name = "prompts", .full = 4, .most = 10, .scales = false},
                    {.name = "prompt_tokens", .full = 2048, .most = 4096},
                    {.name = "layers", .full = 6, .most = most_layers, .scales = false}}),
    .sweep = cases({{"tokens_128", "prompts=1,prompt_tokens=128"},
                    {"tokens_4096", "prompts=2,prompt_tokens=2048"},
                    {"tokens_8192", "prompts=4,prompt_tokens=2048"},
                    {"tokens_12288", "prompts=6,prompt_tokens=2048"},
                    {"tokens_20480", "prompts=10,prompt_tokens=2048"}}),
    .edges = cases({{"one_token", "prompts=1,prompt_tokens=1,layers=1"}, {"odd_prompts", "prompts=3,prompt_tokens=37,layers=2"}}),
};

}  // namespace aisp::ch20
