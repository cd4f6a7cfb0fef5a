// SPDX-License-Identifier: Apache-2.0
// One training step of a linear layer whose neighbours compute in fp32: forward, both gradients and SGD. In fp32 its products run
// on the CUDA cores. On the tensor cores they are so short that casts between them show: products that store fp32 themselves,
// and an update that writes the narrow copy of the weights on its way, leave two of six.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "training/casts.cuh"
#include "training/linear.hpp"
#include "training/linear_reference.hpp"

namespace aisp::ch13 {
namespace {

using bf16 = __nv_bfloat16;
using f16 = __half;

using training::WidePacket, training::Packet, training::cast_threads, training::cast_packet;

constexpr float loss_scale = 65536, largest_f16 = 65504;

// Raises `overflows` where a value times the scale is too large for fp16, which then gets the largest one that is not.
__global__ __launch_bounds__(cast_threads) void scale_kernel(const WidePacket* __restrict__ from, Packet<f16>* __restrict__ to,
                                                             unsigned packets, unsigned* overflows) {
  const unsigned i = blockIdx.x * cast_threads + threadIdx.x;
  if (i >= packets) return;
  const WidePacket x = from[i];
  Packet<f16> narrow;
  bool overflow = false;
#pragma unroll
  for (unsigned k = 0; k < cast_packet; ++k) {
    const float value = x[k] * loss_scale;
    overflow |= !(fabsf(value) <= largest_f16);
    narrow[k] = __float2half_rn(fminf(fmaxf(value, -largest_f16), largest_f16));
  }
  to[i] = narrow;
  if (overflow) *overflows = 1;
}

// Buffers that the update reads and writes besides fp32 weights.
struct UpdateOf {
  float rate;                 // of learning, over the loss scale
  const unsigned* overflows;  // of gradients that are scaled
  float* scale;               // for the next step
};

// Weights are fp32, which go `to`, or a narrow type alone; copies in a narrow type are optional then. A step with an overflow
// leaves the weights as they are and halves the scale.
template <class From, class Copy, bool scaled>
__global__ __launch_bounds__(cast_threads) void sgd_kernel(const From* __restrict__ weights,
                                                           const WidePacket* __restrict__ gradients, WidePacket* __restrict__ to,
                                                           Packet<Copy>* __restrict__ copies, unsigned packets, UpdateOf of) {
  const unsigned i = blockIdx.x * cast_threads + threadIdx.x;
  if (i >= packets) return;
  float rate = of.rate;
  if constexpr (scaled) {
    const bool skip = *of.overflows != 0;
    if (skip) rate = 0;
    if (i == 0) *of.scale = skip ? loss_scale / 2 : loss_scale;
  }
  const From from = weights[i];
  const WidePacket gradient = gradients[i];
  WidePacket w;
  Packet<Copy> copy;
#pragma unroll
  for (unsigned k = 0; k < cast_packet; ++k) {
    w[k] = fmaf(-rate, gradient[k], static_cast<float>(from[k]));
    copy[k] = static_cast<Copy>(w[k]);
  }
  if (to != nullptr) to[i] = w;
  if (copies != nullptr) copies[i] = copy;
}

enum class Cast : std::uint8_t { none, to_bf16, to_f16 };
enum Wide : std::uint8_t { in_fp32, in_tf32, in_emulated_fp32 };

class MixedPrecision final : public Workload {
 public:
  explicit MixedPrecision(Setup& setup)
      : shape_{setup.size("tokens"), setup.size("in"), setup.size("out")},
        overflow_{setup.size("overflow") == 1},
        reproducible_{setup.reproducible()},
        rate_{overflow_ ? 3e-4f : static_cast<float>(0.25 * std::sqrt(4096.0 / static_cast<double>(shape_.rows)))},
        x_{setup.input<float>(shape_.rows * shape_.in, normal(0, 1), {.name = "x"})},
        dy_{setup.input<float>(shape_.rows * shape_.out, gradients(), {.name = "dy"})},
        // Constant: copies of it are at hand when a step begins.
        w_{setup.input<float>(shape_.out * shape_.in, normal(0, 1 / std::sqrt(static_cast<float>(shape_.in))),
                              {.name = "weights", .constant = true})},
        y_{setup.output<float>(x_.size() / shape_.in * shape_.out, {.name = "y"})},
        dx_{setup.output<float>(x_.size(), {.name = "dx"})},
        new_w_{setup.output<float>(w_.size(), {.name = "new weights"})},
        new_narrow_w_{setup.output<bf16>(w_.size(), {.name = "new weights in bf16"})},
        dw_{setup.scratch<float>(w_.size(), {.name = "gradient of the weights"})},
        bf16_{setup, x_.size(), dy_.size(), w_.size()},
        f16_{setup, x_.size(), dy_.size(), w_.size()},
        results_{setup.scratch<bf16>(y_.size()), setup.scratch<bf16>(dx_.size()), setup.scratch<bf16>(w_.size())},
        overflows_{setup.scratch<unsigned>(1)},
        next_scale_{setup.scratch<float>(1)},
        lt_{setup},
        wide_{{setup, lt_, shape_, wide(CUDA_R_32F)},
              {setup, lt_, shape_, wide(CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32)},
              {setup, lt_, shape_, wide(CUDA_R_32F, CUBLAS_COMPUTE_32F_EMULATED_16BFX9)}},
        autocast_{setup, lt_, shape_, {.weight_gradient = CUDA_R_16BF}},
        by_bf16_{setup, lt_, shape_, wide(CUDA_R_16BF)},
        by_f16_{setup, lt_, shape_, wide(CUDA_R_16F)} {}

  Cost cost() const override { return cost_of(Math::fp32); }
  Cost variant_cost(std::string_view variant) const override {
    constexpr Math of_cast[] = {Math::fp32, Math::bf16, Math::fp16};
    return cost_of(variant == "tf32" ? Math::tf32 : of_cast[static_cast<int>(cast_of(variant))]);
  }
  double expected_output(int output, std::size_t i) const override { return reference(Cast::none, output, i); }
  // How TF32 rounds its operands is the library's affair.
  double expected_quantized(std::string_view variant, int output, std::size_t i) const override {
    return reference(cast_of(variant), output, i);
  }
  // Checks what a step leaves to the next one besides weights: their copy in the narrow type, and the scale. It also reports the
  // share of the weights that the step has changed.
  void validate(std::string_view variant) override {
    const bool in_bf16 = variant == "no_master", in_f16 = variant == "fp16_scaled";
    std::vector<float> weights(std::min<std::size_t>(w_.size(), std::size_t{1} << 16));
    std::vector<std::uint16_t> copies(weights.size());
    const auto fetch = [](auto& to, const void* from) {
      check(cudaMemcpy(to.data(), from, to.size() * sizeof to[0], cudaMemcpyDeviceToHost));
    };
    fetch(weights, new_w_);
    const void* const bf16_copies = in_bf16 ? new_narrow_w_.get() : bf16_.new_w.get();
    fetch(copies, in_f16 ? f16_.new_w.get() : bf16_copies);
    std::size_t changed = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double old = w_.host(i);
      changed += in_bf16 ? static_cast<double>(__bfloat162float(std::bit_cast<bf16>(copies[i]))) != training::rounded_to_bf16(old)
                         : weights[i] != static_cast<float>(old);
      const bool differs =
          in_f16 ? __half2float(std::bit_cast<f16>(copies[i])) != __half2float(__float2half_rn(weights[i]))
                 : __bfloat162float(std::bit_cast<bf16>(copies[i])) != __bfloat162float(__float2bfloat16_rn(weights[i]));
      if ((in_f16 || variant == "bf16_master") && differs)
        throw std::runtime_error{"the narrow copy of weight " + std::to_string(i) + " is not the new weight"};
    }
    changed_[std::string{variant}] = 100 * static_cast<double>(changed) / static_cast<double>(weights.size());
    if (!in_f16) return;
    float scale = 0;
    check(cudaMemcpy(&scale, next_scale_, sizeof scale, cudaMemcpyDeviceToHost));
    if (scale != (overflow_ ? loss_scale / 2 : loss_scale))
      throw std::runtime_error{"the loss scale of the next step is " + std::to_string(scale)};
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(shape_.rows), "tokens/s");
    if (const auto known = changed_.find(variant); known != changed_.end())
      metrics.report("weights_changed", known->second, "%", Metrics::Better::higher);
  }

  template <Wide math>
  void run(Launch& launch) {
    wide_[math].forward(launch.stream, x_, w_, y_);
    wide_[math].input_gradient(launch.stream, dy_, w_, dx_);
    wide_[math].weight_gradient(launch.stream, dy_, x_, dw_);
    update<float>(launch, wide_packets(w_), new_w_, nullptr);
  }
  void autocast(Launch& launch) {
    narrow(launch, x_, bf16_.x);
    narrow(launch, w_, bf16_.w);
    autocast_.forward(launch.stream, bf16_.x, bf16_.w, results_[0]);
    widen(launch, results_[0], y_);
    narrow(launch, dy_, bf16_.dy);
    autocast_.input_gradient(launch.stream, bf16_.dy, bf16_.w, results_[1]);
    widen(launch, results_[1], dx_);
    autocast_.weight_gradient(launch.stream, bf16_.dy, bf16_.x, results_[2]);
    widen(launch, results_[2], dw_);
    update<float>(launch, wide_packets(w_), new_w_, nullptr);
  }
  void bf16_master(Launch& launch) {
    bf16_gradients(launch);
    update(launch, wide_packets(w_), new_w_, packets(bf16_.new_w.get()));
  }
  void no_master(Launch& launch) {
    bf16_gradients(launch);
    update(launch, static_cast<const Packet<bf16>*>(packets(bf16_.w.get())), nullptr, packets(new_narrow_w_.get()));
  }
  void fp16_scaled(Launch& launch) {
    check(cudaMemsetAsync(overflows_, 0, sizeof(unsigned), launch.stream));
    narrow(launch, x_, f16_.x);
    by_f16_.forward(launch.stream, f16_.x, f16_.w, y_);
    launch(scale_kernel, grid(dy_.size()), wide_packets(dy_), packets(f16_.dy.get()), count(dy_.size()), overflows_.get());
    by_f16_.input_gradient(launch.stream, f16_.dy, f16_.w, dx_, 1 / loss_scale);
    by_f16_.weight_gradient(launch.stream, f16_.dy, f16_.x, dw_);
    update<f16, true>(launch, wide_packets(w_), new_w_, packets(f16_.new_w.get()));
  }
  void products_alone(Launch& launch) { multiply(launch); }

  template <Wide math>
  void prepare(Launch& launch) {
    tune(launch, wide_[math], x_, w_, dy_);
  }
  void prepare_autocast(Launch& launch) {
    narrow_all(launch, bf16_);
    if (!reproducible_) autocast_.tune(launch.stream, bf16_.x, bf16_.w, bf16_.dy, results_[0], results_[1], results_[2]);
  }
  void prepare_bf16(Launch& launch) {
    narrow_all(launch, bf16_);
    tune(launch, by_bf16_, bf16_.x, bf16_.w, bf16_.dy);
  }
  void prepare_f16(Launch& launch) {
    narrow_all(launch, f16_);
    tune(launch, by_f16_, f16_.x, f16_.w, f16_.dy);
  }

 private:
  // Copies in a narrow type.
  template <class T>
  struct Narrow {
    Narrow(Setup& setup, std::size_t of_x, std::size_t of_dy, std::size_t of_w)
        : x{setup.scratch<T>(of_x)}, dy{setup.scratch<T>(of_dy)}, w{setup.scratch<T>(of_w)}, new_w{setup.scratch<T>(of_w)} {}
    Scratch<T> x, dy, w, new_w;
  };

  static training::LinearTypes wide(cudaDataType_t operands, cublasComputeType_t compute = CUBLAS_COMPUTE_32F) {
    return {.operands = operands, .activations = CUDA_R_32F, .compute = compute};
  }
  static Cast cast_of(std::string_view variant) {
    if (variant == "fp16_scaled") return Cast::to_f16;
    return variant == "fp32" || variant == "tf32" || variant == "emulated_fp32" ? Cast::none : Cast::to_bf16;
  }
  // From 1e-8 to 1e-6 along the tokens: below what fp16 holds, and above.
  Pattern gradients() const {
    const Pattern pattern = normal(0, 1e-6f).times(0.01f, 1, all_of(Axis{shape_.out, shape_.rows}));
    return overflow_ ? pattern.set(2, drawn(Axis{1, shape_.rows * shape_.out}, 1)) : pattern;
  }
  Cost cost_of(Math math) const {
    return {.flops = 6 * static_cast<double>(shape_.rows) * static_cast<double>(w_.size()),
            .math = math,
            .bytes = static_cast<double>(2 * (x_.bytes() + dy_.bytes() + 2 * w_.bytes()))};
  }

  static double rounded(Cast to, double value) {
    return to == Cast::to_bf16 ? training::rounded_to_bf16(value) : to == Cast::to_f16 ? training::rounded_to_f16(value) : value;
  }
  double reference(Cast cast, int output, std::size_t i) const {
    const auto x = [&](std::size_t token, std::size_t in) { return rounded(cast, x_.host(token * shape_.in + in)); };
    const auto w = [&](std::size_t out, std::size_t in) { return rounded(cast, w_.host(out * shape_.in + in)); };
    const auto dy = [&](std::size_t token, std::size_t out) {
      const double value = dy_.host(token * shape_.out + out);
      if (cast != Cast::to_f16) return rounded(cast, value);
      return rounded(cast, std::clamp<double>(value * loss_scale, -largest_f16, largest_f16)) / loss_scale;
    };
    if (output == 0) return training::expected_y(shape_, i, x, w);
    if (output == 1) return training::expected_dx(shape_, i, dy, w);
    const double old = rounded(output == 3 ? cast : Cast::none, w_.host(i));
    if (overflow_ && cast == Cast::to_f16) return old;
    return old - static_cast<double>(rate_) * training::expected_dw(shape_, i, dy, x);
  }

  static unsigned count(std::size_t elements) { return training::cast_packets(elements); }
  static Grid grid(std::size_t elements) { return {training::cast_blocks(elements), cast_threads}; }
  static const WidePacket* wide_packets(const float* of) { return reinterpret_cast<const WidePacket*>(of); }
  template <class T>
  static Packet<T>* packets(T* of) {
    return reinterpret_cast<Packet<T>*>(of);
  }

  template <class T>
  void narrow(Launch& launch, const Input<float>& from, const Scratch<T>& to) const {
    launch(training::narrow_kernel<T>, grid(from.size()), wide_packets(from), packets(to.get()), count(from.size()));
  }
  template <class T>
  void narrow_all(Launch& launch, const Narrow<T>& to) const {
    narrow(launch, x_, to.x);
    narrow(launch, dy_, to.dy);
    narrow(launch, w_, to.w);
  }
  void widen(Launch& launch, const Scratch<bf16>& from, float* to) const {
    const Packet<bf16>* const narrow = packets(from.get());
    launch(training::widen_kernel<bf16>, grid(from.size()), narrow, reinterpret_cast<WidePacket*>(to), count(from.size()));
  }
  template <class Copy, bool scaled = false, class From>
  void update(Launch& launch, const From* weights, float* to, Packet<Copy>* copies) const {
    launch(sgd_kernel<From, Copy, scaled>, grid(w_.size()), weights, wide_packets(dw_), reinterpret_cast<WidePacket*>(to), copies,
           count(w_.size()), UpdateOf{scaled ? rate_ / loss_scale : rate_, overflows_, next_scale_});
  }
  void multiply(Launch& launch) const {
    by_bf16_.forward(launch.stream, bf16_.x, bf16_.w, y_);
    by_bf16_.input_gradient(launch.stream, bf16_.dy, bf16_.w, dx_);
    by_bf16_.weight_gradient(launch.stream, bf16_.dy, bf16_.x, dw_);
  }
  void bf16_gradients(Launch& launch) const {
    narrow(launch, x_, bf16_.x);
    narrow(launch, dy_, bf16_.dy);
    multiply(launch);
  }
  void tune(Launch& launch, const training::Linear& which, const void* x, const void* w, const void* dy) const {
    if (!reproducible_) which.tune(launch.stream, x, w, dy, y_, dx_, dw_);
  }

  training::LinearShape shape_;
  bool overflow_, reproducible_;
  float rate_;  // the median update is a tenth of a step of bf16, with any number of tokens
  Input<float> x_, dy_, w_;
  Output<float> y_, dx_, new_w_;
  Output<bf16> new_narrow_w_;
  Scratch<float> dw_;
  Narrow<bf16> bf16_;
  Narrow<f16> f16_;
  Scratch<bf16> results_[3];  // y, dx and dw
  Scratch<unsigned> overflows_;
  Scratch<float> next_scale_;
  Opened<CublasLt> lt_;
  training::Linear wide_[3], autocast_, by_bf16_, by_f16_;
  std::map<std::string, double, std::less<>> changed_;  // by variant
};

constexpr std::uint32_t fp32_outputs = 0b0111, bf16_weights = 0b1011;
// The rms of an update is 6e-4 of that of the weights, so that limits of the weights are those of the update times 6e-4.
constexpr double of_update = 6e-4;
constexpr Tolerance fp32_sums = within(1e-5);
constexpr Tolerances after_fp32_sums = per_output({fp32_sums, fp32_sums, within(2e-7, 2e-6), within_steps(1, 0.01)});
constexpr Tolerances from_tf32 = per_output({tf32_operands, tf32_operands, within(1e-3 * of_update, 1e-4)});
constexpr Tolerances rounded_twice = per_output({rounded_to_bf16, rounded_to_bf16, within(2.5e-3 * of_update, 3e-4)});

}  // namespace

extern constinit const Pair mixed_precision{
    .teaches =
        "tensor cores make a step's products so short that each cast between them shows: let products and the update do it",
    .lesson = "bf16_master",
    .make = make<MixedPrecision>,
    .baseline = {.name = "fp32",
                 .run = call<&MixedPrecision::run<in_fp32>>,
                 .prepare = call<&MixedPrecision::prepare<in_fp32>>,
                 .outputs = fp32_outputs},
    .optimized = variants({{.name = "tf32",
                            .run = call<&MixedPrecision::run<in_tf32>>,
                            .prepare = call<&MixedPrecision::prepare<in_tf32>>,
                            .changes_precision = true,
                            .tolerance = from_tf32,
                            .outputs = fp32_outputs},
                           {.name = "autocast",
                            .run = call<&MixedPrecision::autocast>,
                            .prepare = call<&MixedPrecision::prepare_autocast>,
                            .changes_precision = true,
                            .tolerance = rounded_twice,
                            .outputs = fp32_outputs},
                           {.name = "bf16_master",
                            .run = call<&MixedPrecision::bf16_master>,
                            .prepare = call<&MixedPrecision::prepare_bf16>,
                            .changes_precision = true,
                            .outputs = fp32_outputs},
                           {.name = "fp16_scaled",
                            .run = call<&MixedPrecision::fp16_scaled>,
                            .prepare = call<&MixedPrecision::prepare_f16>,
                            .changes_precision = true,
                            .outputs = fp32_outputs}}),
    // Weights in bf16 alone; and the products of bf16_master without casts and update.
    .controls = variants({{.name = "no_master",
                           .run = call<&MixedPrecision::no_master>,
                           .prepare = call<&MixedPrecision::prepare_bf16>,
                           .changes_precision = true,
                           .outputs = bf16_weights},
                          {.name = "products_alone",
                           .run = call<&MixedPrecision::products_alone>,
                           .prepare = call<&MixedPrecision::prepare_bf16>,
                           .outputs = no_outputs}}),
    // As accurate as fp32, from nine products in bf16; made for Blackwell.
    .libraries = variants({{.name = "emulated_fp32",
                            .run = call<&MixedPrecision::run<in_emulated_fp32>>,
                            .prepare = call<&MixedPrecision::prepare<in_emulated_fp32>>,
                            .needs = {.min_sm = 100},
                            .outputs = fp32_outputs}}),
    .bound = Bound::compute,
    .tolerance = after_fp32_sums,
    .needs = {.libraries = {Library::cublaslt}},
    .sizes = sizes({{.name = "tokens", .full = 4096, .multiple = 8},
                    {.name = "in", .full = 4096, .multiple = 8, .most = 16384, .scales = false},
                    {.name = "out", .full = 4096, .multiple = 8, .most = 16384, .scales = false},
                    option("overflow")}),
    .sweep = cases({{"tokens_128", "tokens=128"},
                    {"tokens_512", "tokens=512"},
                    {"tokens_2048", "tokens=2048"},
                    {"tokens_4096", "tokens=4096"},
                    {"tokens_16384", "tokens=16384"}}),
    .edges = cases({{"overflow", "tokens=16,in=16,out=24,overflow=1"},
                    {"tails", "tokens=1032,in=520,out=248"},
                    {"smallest", "tokens=8,in=8,out=8"}}),
    .reference_samples = 512,
};

}  // namespace aisp::ch13
