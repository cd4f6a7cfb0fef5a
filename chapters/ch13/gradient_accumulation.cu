// SPDX-License-Identifier: Apache-2.0
// The gradient of a weight over eight micro-batches, summed in fp32. A product that stores its gradient in bf16 and a kernel that
// adds it move 587 MB for 120 GFLOP, and with 1024 tokens that is as long as the product. The product can add to the sum itself,
// by its beta of 1 or by reductions in L2; or the operands of all micro-batches are kept, and there is one long product.
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <optional>
#include <vector>

#include "gemm/gemm.hpp"
#include "rows.cuh"

namespace aisp::ch13 {
namespace {

using shared::bf16, shared::packet;

constexpr unsigned threads = 256;

__device__ __forceinline__ void load_eight(const bf16* from, float (&x)[packet]) {
  shared::unpack(*reinterpret_cast<const uint4*>(from), x);
}
__device__ __forceinline__ void load_eight(const float* from, float (&x)[packet]) {
  const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

// The first gradient overwrites what was there.
template <class Gradient>
__global__ __launch_bounds__(threads) void add_kernel(const Gradient* gradient, float* sum, unsigned packets, bool is_first) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= packets) return;
  float x[packet], before[packet] = {};
  load_eight(gradient + std::size_t{i} * packet, x);
  if (!is_first) load_eight(sum + std::size_t{i} * packet, before);
  auto* const to = reinterpret_cast<float4*>(sum) + std::size_t{i} * 2;
  to[0] = make_float4(before[0] + x[0], before[1] + x[1], before[2] + x[2], before[3] + x[3]);
  to[1] = make_float4(before[4] + x[4], before[5] + x[5], before[6] + x[6], before[7] + x[7]);
}

// Tokens lie along K, and both operands along the other extent.
using Operand = gemm::Operand<bf16, gemm::Major::mn>;
using Tile =
    gemm::Config<Operand, Operand, gemm::InTensorCores, gemm::Shape{.tile_n = 128, .stages = 4, .pingpong = true, .cluster = 2}>;
using Overwrites = gemm::Gemm<Tile, gemm::Bands, gemm::Identity, gemm::TmaStore<float, 2>>;
using Adds = gemm::Gemm<Tile, gemm::Bands, gemm::Identity, gemm::TmaStore<float, 2, true>>;

class GradientAccumulation final : public Workload {
 public:
  explicit GradientAccumulation(Setup& setup)
      : tokens_{setup.size("tokens")},
        batches_{setup.size("microbatches")},
        inputs_{setup.size("inputs")},
        outputs_{setup.size("outputs")},
        x_{setup.input<bf16>(batches_ * tokens_ * inputs_, normal(0.5f, 1), {.name = "inputs of the layer"})},
        dy_{setup.input<bf16>(batches_ * tokens_ * outputs_, gradients(), {.name = "gradients of its outputs"})},
        sum_{setup.output<float>(inputs_ * outputs_, {.name = "gradient of the weights"})},
        narrow_{setup.scratch<bf16>(sum_.size(), {.name = "gradient of a micro-batch"})},
        wide_{setup.scratch<float>(sum_.size(), {.name = "gradient of a micro-batch in fp32"})},
        lt_{setup},
        to_bf16_{setup, lt_, problem(tokens_, CUDA_R_16BF)},
        to_fp32_{setup, lt_, problem(tokens_, CUDA_R_32F)},
        of_all_{setup, lt_, problem(batches_ * tokens_, CUDA_R_32F)},
        reproducible_{setup.reproducible()} {}

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(sum_.size()) * static_cast<double>(batches_ * tokens_),
            .math = Math::bf16,
            .bytes = static_cast<double>(x_.bytes() + dy_.bytes() + sum_.bytes())};
  }
  double expected(std::size_t i) const override {
    const std::size_t row = i / outputs_, column = i % outputs_;
    double sum = 0;
    for (std::size_t token = 0; token < batches_ * tokens_; ++token)
      sum += x_.host(token * inputs_ + row) * dy_.host(token * outputs_ + column);
    return sum;
  }
  // Beside operands of one micro-batch and the sum.
  void metrics(std::string_view variant, Metrics& metrics) override {
    const std::size_t held = variant == "add_kernel"       ? narrow_.bytes()
                             : variant == "fp32_temporary" ? wide_.bytes()
                             : variant == "deferred_wgrad" ? (x_.bytes() + dy_.bytes()) / batches_ * (batches_ - 1)
                                                           : 0;
    metrics.report("further_memory", static_cast<double>(held) / 1e6, "MB", Metrics::Better::lower);
    metrics.report_rate("tokens_per_second", static_cast<double>(batches_ * tokens_), "tokens/s");
  }

  void tune_bf16(Launch& launch) { tune(launch, to_bf16_, narrow_.get(), 0); }
  void add_kernel(Launch& launch) { through_temporary(launch, to_bf16_, narrow_.get()); }
  void tune_fp32(Launch& launch) { tune(launch, to_fp32_, wide_.get(), 0); }
  void fp32_temporary(Launch& launch) { through_temporary(launch, to_fp32_, wide_.get()); }
  void tune_adding(Launch& launch) { tune(launch, to_fp32_, sum_.get(), 1); }
  void beta_one(Launch& launch) {
    for (std::size_t b = 0; b < batches_; ++b) to_fp32_->run(launch.stream, x_of(b), dy_of(b), sum_, 1, b == 0 ? 0 : 1);
  }
  void describe(Launch&) {
    if (overwrites_) return;
    const auto problem = [this](std::size_t b) {
      return Adds::Problem{.a = x_of(b), .b = dy_of(b), .c = sum_, .m = inputs_, .n = outputs_, .k = tokens_};
    };
    overwrites_.emplace(Overwrites::Problem{.a = x_of(0), .b = dy_of(0), .c = sum_, .m = inputs_, .n = outputs_, .k = tokens_});
    for (std::size_t b = 1; b < batches_; ++b) adds_.emplace_back(problem(b));
  }
  void bulk_reduce(Launch& launch) {
    overwrites_->run(launch.stream);
    for (const Adds& each : adds_) each.run(launch.stream);
  }
  void tune_all(Launch& launch) { tune(launch, of_all_, sum_.get(), 0); }
  void deferred_wgrad(Launch& launch) { of_all_->run(launch.stream, x_, dy_, sum_); }

 private:
  MatmulProblem problem(std::size_t tokens, cudaDataType_t result) const {
    return {.m = inputs_, .n = outputs_, .k = tokens, .result = result, .a_is_transposed = true};
  }
  // Two micro-batches whose means cancel, and one that is small beside the others.
  Pattern gradients() const {
    const Axis batches{tokens_ * outputs_, batches_};
    return normal(0, 1)
        .plus_steps(0.2f, 1, at(batches, 1, 2))
        .plus_steps(-0.2f, 1, at(batches, 2, 2))
        .times(1e-4f, at(batches, 5));
  }
  const bf16* x_of(std::size_t batch) const { return x_ + batch * tokens_ * inputs_; }
  const bf16* dy_of(std::size_t batch) const { return dy_ + batch * tokens_ * outputs_; }
  void tune(Launch& launch, const Opened<MatmulPlan>& plan, void* to, float beta) const {
    if (reproducible_) throw Unsupported{not_reproducible};
    plan->tune(launch.stream, x_.get(), dy_.get(), to, beta);
  }
  template <class Gradient>
  void through_temporary(Launch& launch, const Opened<MatmulPlan>& plan, Gradient* temporary) {
    const std::size_t packets = sum_.size() / packet;
    for (std::size_t b = 0; b < batches_; ++b) {
      plan->run(launch.stream, x_of(b), dy_of(b), temporary);
      launch(ch13::add_kernel<Gradient>, {static_cast<unsigned>((packets + threads - 1) / threads), threads}, temporary, sum_,
             packets, b == 0);
    }
  }

  std::size_t tokens_, batches_, inputs_, outputs_;
  Input<bf16> x_, dy_;
  Output<float> sum_;
  Scratch<bf16> narrow_;
  Scratch<float> wide_;
  Opened<CublasLt> lt_;
  Opened<MatmulPlan> to_bf16_, to_fp32_, of_all_;
  bool reproducible_;
  std::optional<Overwrites> overwrites_;
  std::vector<Adds> adds_;
};

constexpr Needs by_cublaslt{.libraries = {Library::cublaslt}};
// Products and sums in fp32; tensor cores keep fewer bits while they add.
constexpr Tolerance summed_in_fp32 = within(1e-4);

}  // namespace

extern constinit const Pair gradient_accumulation{
    .teaches = "a product that adds to the sum of the gradients needs no kernel that adds, and no temporary",
    .lesson = "beta_one",
    .make = make<GradientAccumulation>,
    .baseline = {.name = "add_kernel",
                 .run = call<&GradientAccumulation::add_kernel>,
                 .prepare = call<&GradientAccumulation::tune_bf16>,
                 .needs = by_cublaslt},
    .optimized = variants({{.name = "beta_one",
                            .run = call<&GradientAccumulation::beta_one>,
                            .prepare = call<&GradientAccumulation::tune_adding>,
                            .needs = by_cublaslt,
                            .tolerance = summed_in_fp32},
                           {.name = "deferred_wgrad",
                            .run = call<&GradientAccumulation::deferred_wgrad>,
                            .prepare = call<&GradientAccumulation::tune_all>,
                            .needs = by_cublaslt,
                            .tolerance = summed_in_fp32}}),
    // The kernel that adds, after a product that rounds nothing: the gain is not the type of the store. And the engine's product,
    // which adds by reductions in L2 and so reads nothing of the sum.
    .controls = variants({{.name = "fp32_temporary",
                           .run = call<&GradientAccumulation::fp32_temporary>,
                           .prepare = call<&GradientAccumulation::tune_fp32>,
                           .needs = by_cublaslt,
                           .tolerance = summed_in_fp32},
                          {.name = "bulk_reduce",
                           .run = call<&GradientAccumulation::bulk_reduce>,
                           .prepare = call<&GradientAccumulation::describe>,
                           .needs = Adds::needs(),
                           .tolerance = summed_in_fp32,
                           .kernels = {.local_bytes = 0}}}),
    .bound = Bound::compute,
    // The gradients of the micro-batches are rounded to bf16, 1.6e-3 each, and those of two of them cancel.
    .tolerance = within(5e-3),
    .sizes = sizes({{.name = "tokens", .full = 1024, .multiple = 8, .scales = false},
                    {.name = "microbatches", .full = 8, .most = 64, .scales = false},
                    {.name = "inputs", .full = 4096, .multiple = 64},
                    {.name = "outputs", .full = 14336, .multiple = 64}}),
    .sweep = cases({{"tokens_256", "tokens=256,microbatches=32"},
                    {"tokens_512", "tokens=512,microbatches=16"},
                    {"tokens_1024", "tokens=1024,microbatches=8"},
                    {"tokens_2048", "tokens=2048,microbatches=4"},
                    {"tokens_4096", "tokens=4096,microbatches=2"},
                    {"tokens_8192", "tokens=8192,microbatches=1"}}),
    .edges = cases({{"one_microbatch", "tokens=64,microbatches=1,inputs=64,outputs=64"},
                    {"tails", "tokens=72,microbatches=7,inputs=192,outputs=448"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch13
