// SPDX-License-Identifier: Apache-2.0
// The MLP of a decoder layer over 32768 tokens: norm, two products, their gate, a third product and the residual, in PyTorch's
// operations 1.7 GB of element-wise traffic around 0.8 TFLOP. The gate goes into the epilogue of the product that makes it, the
// residual into that of the last one, and the norm, a factor of each row, comes after the product: two kernels and a small one.
#include <aisp/dispatch.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <cmath>
#include <optional>
#include <vector>

#include "gemm/gemm.hpp"
#include "row_cache.hpp"
#include "rows.cuh"

namespace aisp::ch20 {
namespace {

using shared::bf16, shared::packet;

constexpr unsigned threads = 256, warps = threads / 32;
constexpr float epsilon = 1e-5f;

// A warp a row, which its lanes keep.
template <int hidden>
__device__ __forceinline__ float load_row(const uint4* from, float (&x)[hidden / 256][packet]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < hidden / 256; ++i) {
    shared::unpack(from[i * 32 + threadIdx.x % 32], x[i]);
    sum += shared::sum_of_squares(x[i]);
  }
  return rsqrtf(device::warp_sum(sum) / hidden + epsilon);
}
template <int hidden>
__global__ __launch_bounds__(threads) void norm_kernel(const uint4* x, const uint4* gains, uint4* to, unsigned rows) {
  const unsigned row = blockIdx.x * warps + threadIdx.x / 32;
  if (row >= rows) return;
  constexpr unsigned packets = hidden / packet;
  float own[hidden / 256][packet];
  const float factor = load_row<hidden>(x + std::size_t{row} * packets, own);
#pragma unroll
  for (int i = 0; i < hidden / 256; ++i) {
    float gain[packet];
    shared::unpack(gains[i * 32 + threadIdx.x % 32], gain);
#pragma unroll
    for (int c = 0; c < packet; ++c) own[i][c] *= factor * gain[c];
    to[std::size_t{row} * packets + i * 32 + threadIdx.x % 32] = shared::pack(own[i]);
  }
}
template <int hidden>
__global__ __launch_bounds__(threads) void row_factors_kernel(const uint4* x, float* factors, unsigned rows) {
  const unsigned row = blockIdx.x * warps + threadIdx.x / 32;
  if (row >= rows) return;
  float own[hidden / 256][packet];
  const float factor = load_row<hidden>(x + std::size_t{row} * (hidden / packet), own);
  if (threadIdx.x % 32 == 0) factors[row] = factor;
}

// Packets of eight elements: a = f(a, b).
struct Silu {
  static __device__ __forceinline__ float of(float a, float) { return __fdividef(a, 1 + __expf(-a)); }
};
struct Times {
  static __device__ __forceinline__ float of(float a, float b) { return a * b; }
};
struct Plus {
  static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};
template <class Operation>
__global__ __launch_bounds__(threads) void elementwise_kernel(uint4* a, const uint4* b, unsigned packets) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= packets) return;
  float x[packet], y[packet];
  shared::unpack(a[i], x);
  shared::unpack(b[i], y);
#pragma unroll
  for (int c = 0; c < packet; ++c) x[c] = Operation::of(x[c], y[c]);
  a[i] = shared::pack(x);
}
// The gate's products and those of `up`, rows of either `pitch` packets apart.
__global__ __launch_bounds__(threads) void swiglu_kernel(const uint4* gates, const uint4* ups, std::size_t pitch, uint4* to,
                                                         unsigned row_packets, unsigned packets) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= packets) return;
  const std::size_t from = i / row_packets * pitch + i % row_packets;
  float gate[packet], up[packet];
  shared::unpack(gates[from], gate);
  shared::unpack(ups[from], up);
#pragma unroll
  for (int c = 0; c < packet; ++c) gate[c] = gemm::SwiGlu::of(gate[c], up[c]);
  to[i] = shared::pack(gate);
}

// Weights [hidden][gate, up] as parts, or with their columns interleaved by eights, and times the norm's gain of their row.
__global__ __launch_bounds__(threads) void split_kernel(const uint4* packed, uint4* gate, uint4* up, unsigned row_packets,
                                                        unsigned packets) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= packets) return;
  const unsigned row = i / (2 * row_packets), in_row = i % (2 * row_packets);
  (in_row < row_packets ? gate : up)[row * row_packets + in_row % row_packets] = packed[i];
}
__global__ __launch_bounds__(threads) void interleave_kernel(const uint4* packed, const bf16* gains, uint4* interleaved,
                                                             unsigned row_packets, unsigned packets) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= packets) return;
  const unsigned row = i / (2 * row_packets), in_row = i % (2 * row_packets);
  float w[packet];
  shared::unpack(packed[i - in_row + in_row % 2 * row_packets + in_row / 2], w);
#pragma unroll
  for (float& x : w) x *= gains == nullptr ? 1 : __bfloat162float(gains[row]);
  interleaved[i] = shared::pack(w);
}

// The norm is a factor of each row, which commutes with the product.
struct NormedSwiGlu {
  static constexpr int narrowing = 2;
  const float* factors = nullptr;
  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const gemm::Fragment& at) const {
    const float upper = at.row(0) < at.row_end ? factors[at.row(0)] : 0, lower = at.row(2) < at.row_end ? factors[at.row(2)] : 0;
#pragma unroll
    for (int i = 0; i < count; ++i) sums[i] *= i % 4 < 2 ? upper : lower;
    gemm::SwiGlu{}(sums, at);
  }
};

using Tile = gemm::Config<gemm::Operand<bf16>, gemm::Operand<bf16, gemm::Major::mn>, gemm::InTensorCores,
                          gemm::Shape{.tile_n = 256, .cluster = 2}>;
using Plain = gemm::Gemm<Tile>;
using Gated = gemm::Gemm<Tile, gemm::Bands, gemm::SwiGlu>;
using Normed = gemm::Gemm<Tile, gemm::Bands, NormedSwiGlu>;

class Bf16Mlp final : public Workload {
 public:
  // Weights of a size that every product has a variance near one.
  explicit Bf16Mlp(Setup& setup)
      : tokens_{setup.size("tokens")},
        hidden_{setup.size("hidden")},
        ffn_{setup.size("ffn")},
        x_{setup.inout<bf16>(tokens_ * hidden_, stream(setup.size("planted") == 1),
                             {.name = "residual stream", .groups = {hidden_, setup.size("planted") == 1 ? tokens_ : 1}})},
        gains_{setup.input<bf16>(hidden_, uniform(0.5f, 1.5f), {.name = "gains of the norm", .constant = true})},
        w_{setup.input<bf16>(hidden_ * 2 * ffn_, normal(0, 1 / std::sqrt(static_cast<float>(hidden_))),
                             {.name = "weights of gate and up", .constant = true})},
        down_w_{setup.input<bf16>(ffn_ * hidden_, normal(0, 2 / std::sqrt(static_cast<float>(ffn_))),
                                  {.name = "weights of down", .constant = true})},
        gate_w_{setup.scratch<bf16>(hidden_ * ffn_, {.name = "weights of the gate"})},
        up_w_{setup.scratch<bf16>(hidden_ * ffn_, {.name = "weights of up"})},
        interleaved_{setup.scratch<bf16>(w_.size(), {.name = "interleaved weights"})},
        with_gains_{setup.scratch<bf16>(w_.size(), {.name = "interleaved weights times gains"})},
        normed_{setup.scratch<bf16>(x_.size(), {.name = "normed"})},
        products_{setup.scratch<bf16>(tokens_ * 2 * ffn_, {.name = "products"})},
        a_{setup.scratch<bf16>(tokens_ * ffn_, {.name = "activations"})},
        result_{setup.scratch<bf16>(x_.size(), {.name = "result of down"})},
        factors_{setup.scratch<float>(tokens_, {.name = "factors of rows"})},
        half_{setup, {.m = tokens_, .n = ffn_, .k = hidden_}},
        both_{setup, {.m = tokens_, .n = 2 * ffn_, .k = hidden_}},
        down_{setup, {.m = tokens_, .n = hidden_, .k = ffn_}},
        reproducible_{setup.reproducible()} {}

  Cost cost() const override {
    return in_turn({{.flops = 4.0 * static_cast<double>(a_.size()) * static_cast<double>(hidden_),
                     .math = Math::bf16,
                     .bytes = static_cast<double>(x_.bytes() + w_.bytes())},
                    {.flops = 2.0 * static_cast<double>(a_.size()) * static_cast<double>(hidden_),
                     .math = Math::bf16,
                     .bytes = static_cast<double>(x_.bytes() + down_w_.bytes())}});
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(tokens_), "tokens of a layer/s");
  }
  void compute_reference(Launch&) override {
    rows_.forget(tokens_);
    host_w_.resize(w_.size());
    for (std::size_t i = 0; i < w_.size(); ++i) host_w_[i] = static_cast<float>(w_.host(i));
  }
  double expected(std::size_t i) const override {
    const std::size_t row = i / hidden_, column = i % hidden_;
    const std::vector<double>& a = rows_.of(row, [&] { return activations(row); });
    double sum = x_.initial(i);
    for (std::size_t k = 0; k < ffn_; ++k) sum += a[k] * down_w_.host(k * hidden_ + column);
    return sum;
  }

  void split(Launch& launch) {
    launch(split_kernel, over(w_.size()), packets(w_.get()), packets(gate_w_.get()), packets(up_w_.get()), ffn_ / packet,
           w_.size() / packet);
    tune(launch);
  }
  void separate(Launch& launch) {
    norm(launch);
    two_products(launch);
    elementwise<Silu>(launch, products_, products_, a_.size());
    elementwise<Times>(launch, products_, up_products(), a_.size());
    down_.run_tuned(launch, products_, down_w_, result_);
    elementwise<Plus>(launch, x_, result_, x_.size());
  }
  void one_gate_kernel(Launch& launch) {
    norm(launch);
    two_products(launch);
    gate(launch, up_products(), ffn_);
    down_.run_tuned(launch, a_, down_w_, result_);
    elementwise<Plus>(launch, x_, result_, x_.size());
  }
  void residual_beta(Launch& launch) {
    norm(launch);
    two_products(launch);
    gate(launch, up_products(), ffn_);
    down(launch);
  }
  void packed_gate_up(Launch& launch) {
    norm(launch);
    both_.run_tuned(launch, normed_, w_, products_);
    gate(launch, products_.get() + ffn_, 2 * ffn_);
    down(launch);
  }
  void describe_engine(Launch& launch) {
    tune(launch);
    interleave(launch, nullptr, interleaved_);
    interleave(launch, gains_, with_gains_);
    if (plain_) return;
    plain_.emplace(Plain::Problem{.a = normed_, .b = w_, .c = products_, .m = tokens_, .n = 2 * ffn_, .k = hidden_});
    gated_.emplace(Gated::Problem{.a = normed_, .b = interleaved_, .c = a_, .m = tokens_, .n = 2 * ffn_, .k = hidden_});
    normed_gate_.emplace(Normed::Problem{.a = x_, .b = with_gains_, .c = a_, .m = tokens_, .n = 2 * ffn_, .k = hidden_});
  }
  void swiglu_epilogue(Launch& launch) {
    norm(launch);
    gated_->run(launch.stream);
    down(launch);
  }
  void norm_scale(Launch& launch) {
    with_hidden([&]<int hidden>() { launch(row_factors_kernel<hidden>, rows(), packets(x_.get()), factors_.get(), tokens_); });
    normed_gate_->run(launch.stream, {factors_});
    down(launch);
  }
  void engine_packed(Launch& launch) {
    norm(launch);
    plain_->run(launch.stream);
    gate(launch, products_.get() + ffn_, 2 * ffn_);
    down(launch);
  }
  void products_alone(Launch& launch) {
    both_.run_tuned(launch, normed_, w_, products_);
    down(launch);
  }

 private:
  Pattern stream(bool planted) const {
    const Axis rows{hidden_, tokens_}, channels{1, hidden_};
    const Pattern plain =
        normal(0, 1).times(20, at(channels, hidden_ / 3)).times(1e-3f, drawn(rows, 16)).set(0, at(rows, tokens_ / 2));
    return planted ? plain.times(1e3f, drawn(rows, 8)) : plain;
  }
  std::vector<double> activations(std::size_t row) const {
    std::vector<double> x(hidden_), sums(2 * ffn_), result(ffn_);
    double squares = 0;
    for (std::size_t k = 0; k < hidden_; ++k) {
      x[k] = x_.initial(row * hidden_ + k);
      squares += x[k] * x[k];
    }
    const double factor = 1 / std::sqrt(squares / static_cast<double>(hidden_) + double{epsilon});
    for (std::size_t k = 0; k < hidden_; ++k) {
      const double normed = x[k] * factor * gains_.host(k);
      for (std::size_t c = 0; c < 2 * ffn_; ++c) sums[c] += normed * static_cast<double>(host_w_[k * 2 * ffn_ + c]);
    }
    for (std::size_t c = 0; c < ffn_; ++c) result[c] = sums[c] / (1 + std::exp(-sums[c])) * sums[ffn_ + c];
    return result;
  }

  static const uint4* packets(const bf16* from) { return reinterpret_cast<const uint4*>(from); }
  static uint4* packets(bf16* from) { return reinterpret_cast<uint4*>(from); }
  static Grid over(std::size_t elements) { return {static_cast<unsigned>((elements / packet + threads - 1) / threads), threads}; }
  Grid rows() const { return {static_cast<unsigned>((tokens_ + warps - 1) / warps), threads}; }
  bf16* up_products() const { return products_.get() + a_.size(); }
  template <class Act>
  void with_hidden(const Act& act) const {
    dispatch<512, 1024, 4096>("hidden", hidden_, act);
  }

  void tune(Launch& launch) {
    if (reproducible_) return;
    half_.tune(launch, normed_, w_, products_);
    both_.tune(launch, normed_, w_, products_);
    down_.tune(launch, a_, down_w_, result_);
  }
  void norm(Launch& launch) const {
    with_hidden([&]<int hidden>() {
      launch(norm_kernel<hidden>, rows(), packets(x_.get()), packets(gains_.get()), packets(normed_.get()), tokens_);
    });
  }
  void two_products(Launch& launch) const {
    half_.run_tuned(launch, normed_, gate_w_, products_);
    half_.run_tuned(launch, normed_, up_w_, up_products());
  }
  void gate(Launch& launch, const bf16* ups, std::size_t pitch) const {
    launch(swiglu_kernel, over(a_.size()), packets(products_.get()), packets(ups), pitch / packet, packets(a_.get()),
           ffn_ / packet, a_.size() / packet);
  }
  void down(Launch& launch) const { down_.run_tuned(launch, a_, down_w_, x_, 1, 1); }
  template <class Operation>
  static void elementwise(Launch& launch, bf16* a, const bf16* b, std::size_t elements) {
    launch(elementwise_kernel<Operation>, over(elements), packets(a), packets(b), elements / packet);
  }
  void interleave(Launch& launch, const bf16* gains, bf16* to) const {
    launch(interleave_kernel, over(w_.size()), packets(w_.get()), gains, packets(to), ffn_ / packet, w_.size() / packet);
  }

  std::size_t tokens_, hidden_, ffn_;
  InOut<bf16> x_;
  Input<bf16> gains_, w_, down_w_;  // w_: [hidden][gate, up]
  Scratch<bf16> gate_w_, up_w_, interleaved_, with_gains_, normed_, products_, a_, result_;
  Scratch<float> factors_;
  LibraryMatmul half_, both_, down_;
  bool reproducible_;
  std::optional<Plain> plain_;
  std::optional<Gated> gated_;
  std::optional<Normed> normed_gate_;
  std::vector<float> host_w_;  // for the reference
  shared::RowCache<std::vector<double>> rows_;
};

constexpr Needs by_cublaslt{.libraries = {Library::cublaslt}};
constexpr Needs by_both{.min_sm = Gated::needs().min_sm, .max_sm = Gated::needs().max_sm, .libraries = {Library::cublaslt}};

}  // namespace

extern constinit const Pair bf16_mlp{
    .teaches =
        "an MLP with norm, gate and residual is two products: the rest goes into their epilogues, the norm as a row's factor",
    .lesson = "swiglu_epilogue",
    .make = make<Bf16Mlp>,
    .baseline = {.name = "separate", .run = call<&Bf16Mlp::separate>, .prepare = call<&Bf16Mlp::split>, .needs = by_cublaslt},
    .optimized = variants(
        {{.name = "swiglu_kernel",
          .run = call<&Bf16Mlp::one_gate_kernel>,
          .prepare = call<&Bf16Mlp::split>,
          .needs = by_cublaslt},
         {.name = "residual_beta", .run = call<&Bf16Mlp::residual_beta>, .prepare = call<&Bf16Mlp::split>, .needs = by_cublaslt},
         {.name = "packed_gate_up",
          .run = call<&Bf16Mlp::packed_gate_up>,
          .prepare = call<&Bf16Mlp::split>,
          .needs = by_cublaslt},
         {.name = "swiglu_epilogue",
          .run = call<&Bf16Mlp::swiglu_epilogue>,
          .prepare = call<&Bf16Mlp::describe_engine>,
          .needs = by_both},
         {.name = "norm_scale",
          .run = call<&Bf16Mlp::norm_scale>,
          .prepare = call<&Bf16Mlp::describe_engine>,
          .needs = by_both}}),
    .controls = variants({{.name = "engine_packed",
                           .run = call<&Bf16Mlp::engine_packed>,
                           .prepare = call<&Bf16Mlp::describe_engine>,
                           .needs = by_both},
                          {.name = "products_alone",
                           .run = call<&Bf16Mlp::products_alone>,
                           .prepare = call<&Bf16Mlp::split>,
                           .needs = by_cublaslt,
                           .outputs = no_outputs}}),
    .bound = Bound::compute,
    // A token of small norm is its MLP's part alone. Of that the baseline rounds, 1.6e-3 each, the normed token, which both
    // products inherit, gate and up, SiLU, their product, the result and the sum: nine in squares, 5e-3. Where a gate is
    // negative, SiLU more than passes its error on, and the edges' tokens hang on a few of 192 columns: half as much again.
    .tolerance = within(8e-3),
    .sizes = sizes({{.name = "tokens", .full = 32768, .most = 1 << 18},
                    {.name = "hidden", .full = 1024, .multiple = 256, .most = 4096, .scales = false},
                    {.name = "ffn", .full = 4096, .multiple = 64, .most = 16384, .scales = false},
                    option("planted")}),
    .sweep = cases({{"hidden_512", "tokens=131072,hidden=512,ffn=2048"},
                    {"hidden_1024", "tokens=32768,hidden=1024,ffn=4096"},
                    {"hidden_4096", "tokens=2048,hidden=4096,ffn=16384"},
                    {"tokens_128", "tokens=128"},
                    {"tokens_2048", "tokens=2048"}}),
    .edges = cases({{"one_token", "tokens=1,hidden=512,ffn=64"},
                    {"planted_rows", "tokens=64,hidden=512,ffn=192,planted=1"},
                    {"a_tail", "tokens=301,ffn=320"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch20
