// SPDX-License-Identifier: Apache-2.0
// Scores of a recommender (DLRM): 26 tables of which each sample adds up eight rows, an MLP of its dense features, the products
// of all pairs of these 27 vectors, and an MLP of those. The gather is a read of memory, and its result, 113 MB, is written and
// read twice before the last MLP has it. A warp that gathers a sample's vectors into shared memory multiplies them there.
#include <cuda_bf16.h>
#include <aisp/device/matrix.cuh>
#include <aisp/graph.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "dlrm_tables.cuh"

namespace aisp::ch20 {
namespace {

using namespace dlrm;

constexpr int dense = 16;                         // 13 features and zeros
constexpr int warps = threads / 32, pitch = 136;  // of a vector in shared memory: no two rows begin in one bank
using Vectors = bf16[vectors][pitch];

// A warp a sample. What lies below the diagonal are six of the eight tiles of 16 x 8 products. A fragment of rows is also one of
// columns, in another order. Where vectors were, the products go, and all leaves in one piece.
__global__ __launch_bounds__(threads, 3) void gather_and_interact_kernel(Bags bags, const uint4* bottom, uint4* to) {
  extern __shared__ __align__(16) unsigned char space[];
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, sample = blockIdx.x * warps + warp;
  if (sample >= bags.samples) return;
  Vectors& own = reinterpret_cast<Vectors*>(space)[warp];
  if (lane < lanes) reinterpret_cast<uint4*>(own[0])[lane] = bottom[std::size_t{sample} * lanes + lane];
  for (unsigned table = lane / lanes; table < tables; table += 2)
    reinterpret_cast<uint4*>(own[1 + table])[lane % lanes] = pooled(bags, table, sample);
  __syncwarp();
  float products[6][4] = {};  // rows 0 to 15 times columns 0 to 15, rows 16 to 31 times all
#pragma unroll
  for (unsigned k = 0; k < width; k += 16) {
    unsigned a[2][4];
#pragma unroll
    for (unsigned m = 0; m < 2; ++m)
      device::load_matrices(a[m], device::shared_address(&own[min(m * 16 + lane % 16, vectors - 1u)][k + lane / 16 * 8]));
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (n < 2) device::mma_bf16(products[n], a[0], a[0][n], a[0][n + 2]);
      device::mma_bf16(products[2 + n], a[1], a[n / 2][n % 2], a[n / 2][n % 2 + 2]);
    }
  }
  __syncwarp();
  bf16* const result = own[0];
#pragma unroll
  for (int tile = 0; tile < 6; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned row = (tile < 2 ? 0 : 16) + lane / 4 + i / 2 * 8,
                     column = (tile < 2 ? tile : tile - 2) * 8 + lane % 4 * 2 + i % 2;
      if (row < vectors && column < row) result[width + row * (row - 1) / 2 + column] = __float2bfloat16_rn(products[tile][i]);
    }
  if (lane == 0) result[features - 1] = bf16{0.0f};
  __syncwarp();
  for (unsigned i = lane; i < features / 8; i += 32)
    to[std::size_t{sample} * (features / 8) + i] = reinterpret_cast<const uint4*>(result)[i];
}

// A layer of an MLP with ReLU, its product alone and with bias and ReLU.
struct Layer {
  std::size_t in, out, samples;
  Input<bf16> weights, bias;
  Scratch<bf16> result;
  LibraryMatmul product, with_epilogue;

  Layer(Setup& setup, std::size_t count, std::size_t inputs, std::size_t outputs, float deviation)
      : in{inputs},
        out{outputs},
        samples{count},
        weights{setup.input<bf16>(in * out, normal(0, deviation), {.name = "weights", .constant = true})},
        bias{setup.input<bf16>(out, normal(0, 0.1f), {.name = "bias", .constant = true})},
        result{setup.scratch<bf16>(samples * out, {.name = "activations"})},
        product{setup, {.m = samples, .n = out, .k = in, .b_is_transposed = true}},
        with_epilogue{setup, problem_with_epilogue()} {}

  MatmulProblem problem_with_epilogue(std::size_t c_pitch = 0) const {
    return {.m = samples,
            .n = out,
            .k = in,
            .b_is_transposed = true,
            .c_pitch = c_pitch,
            .epilogue = CUBLASLT_EPILOGUE_RELU_BIAS,
            .bias = bias.get()};
  }
};

enum class Step { separate, batched, epilogues, interaction };

class DlrmInference final : public Workload {
 public:
  explicit DlrmInference(Setup& setup)
      : samples_{setup.size("batch")},
        lookups_{setup.size("lookups")},
        rows_{setup.size("rows")},
        skewed_{setup.size("skewed") == 1},
        tables_{setup.input<bf16>(tables * rows_ * width, normal(0, 0.35f), {.name = "tables", .constant = true})},
        indices_{setup.input<int>(tables * samples_ * lookups_, indices(), {.name = "indices"})},
        counts_{setup.input<int>(tables * samples_, counts(setup.size("planted") == 1), {.name = "lengths of bags"})},
        dense_{setup.input<bf16>(samples_ * dense, normal(0, 1).set(0, at(Axis{1, dense}, 13, 3)), {.name = "dense features"})},
        last_{setup.input<bf16>(last_width, normal(0, 1.0f / 16), {.name = "weights of the last layer", .constant = true})},
        scores_{setup.output<float>(samples_, {.name = "scores"})},
        layers_{Layer{setup, samples_, dense, 512, 0.4f},      Layer{setup, samples_, 512, 256, 0.06f},
                Layer{setup, samples_, 256, width, 0.09f},     Layer{setup, samples_, features, 1024, 0.0067f},
                Layer{setup, samples_, 1024, 1024, 0.044f},    Layer{setup, samples_, 1024, 512, 0.044f},
                Layer{setup, samples_, 512, last_width, 0.06f}},
        bottom_in_place_{setup, layers_[2].problem_with_epilogue(vectors * width)},
        pooled_{setup.scratch<bf16>(tables * samples_ * width, {.name = "pooled"})},
        side_by_side_{setup.scratch<bf16>(samples_ * vectors * width, {.name = "vectors"})},
        squares_{setup.scratch<bf16>(samples_ * vectors * square, {.name = "products"})},
        features_{setup.scratch<bf16>(samples_ * features, {.name = "features"})},
        cublas_{setup},
        reproducible_{setup.reproducible()} {}

  Cost cost() const override {
    double products = 2.0 * static_cast<double>(samples_) * (pairs * width + last_width);
    for (const Layer& layer : layers_) products += 2.0 * static_cast<double>(samples_ * layer.in * layer.out);
    return in_turn({lookups_cost(), {.flops = products, .math = Math::bf16, .bytes = static_cast<double>(scores_.bytes())}});
  }
  Cost variant_cost(std::string_view variant) const override {
    if (variant != "gather_only") return cost();
    Cost alone = lookups_cost();
    alone.bytes += static_cast<double>(tables * samples_ * width * sizeof(bf16));  // its result
    return alone;
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("samples_per_second", static_cast<double>(samples_), "samples/s");
  }
  void compute_reference(Launch&) override {
    weights_.clear();
    for (const Layer& layer : layers_) {
      std::vector<double>& of_layer = weights_.emplace_back(layer.in * layer.out);
      for (std::size_t i = 0; i < of_layer.size(); ++i) of_layer[i] = layer.weights.host(i);
    }
  }
  double expected(std::size_t sample) const override {
    std::vector<double> x(dense);
    for (std::size_t i = 0; i < dense; ++i) x[i] = dense_.host(sample * dense + i);
    for (std::size_t layer = 0; layer < bottom_layers; ++layer) x = through(layer, x);
    std::vector<std::vector<double>> all{x};
    for (std::size_t table = 0; table < tables; ++table) {
      std::vector<double> sum(width);
      const std::size_t bag = table * samples_ + sample;
      for (std::size_t i = 0; i < static_cast<std::size_t>(counts_.host(bag)); ++i) {
        const std::size_t row = table * rows_ + static_cast<std::size_t>(indices_.host(bag * lookups_ + i));
        for (std::size_t c = 0; c < width; ++c) sum[c] += tables_.host(row * width + c);
      }
      all.push_back(sum);
    }
    for (std::size_t i = 1; i < vectors; ++i)
      for (std::size_t j = 0; j < i; ++j) {
        double product = 0;
        for (std::size_t c = 0; c < width; ++c) product += all[i][c] * all[j][c];
        x.push_back(product);
      }
    x.push_back(0);
    for (std::size_t layer = bottom_layers; layer < layers_.size(); ++layer) x = through(layer, x);
    double sum = 0;
    for (std::size_t i = 0; i < last_width; ++i) sum += x[i] * last_.host(i);
    return 1 / (1 + std::exp(-sum));
  }

  template <Step step>
  void prepare(Launch& launch) {
    if (!reproducible_) tune(launch);
    work<step>(launch);  // a kernel's code is loaded at its first launch: not while a capture is under way
    graphs_[static_cast<std::size_t>(step)].capture(launch.stream, [&](cudaStream_t) { work<step>(launch); });
  }
  template <Step step>
  void run(Launch& launch) {
    graphs_[static_cast<std::size_t>(step)].launch(launch.stream);
  }
  void eager(Launch& launch) { work<Step::separate>(launch); }
  void gather_only(Launch& launch) { gather_side_by_side(launch); }

 private:
  static constexpr std::size_t bottom_layers = 3;

  // Rows 0 and the last one, and one that is twice in a bag.
  Pattern indices() const {
    const auto last = static_cast<std::int64_t>(rows_) - 1;
    const Axis bags{lookups_, tables * samples_};
    return (skewed_ ? zipf(last + 1, skew) : integers(0, last))
        .set(0, at(bags, 0))
        .set(static_cast<float>(last), drawn(bags, 8))
        .set(7, at(Axis{1, lookups_}, 0, 2), drawn(bags, 8));
  }
  Pattern counts(bool planted) const {
    const auto most = static_cast<std::int64_t>(lookups_);
    return planted ? categorical({{0, 1}, {1, 1}, {most, 2}}) : integers(most, most);
  }
  Cost lookups_cost() const {
    const double gathered = tables * distinct_rows() * width * sizeof(bf16);
    return {.bytes = gathered + static_cast<double>(indices_.bytes() + counts_.bytes())};
  }
  // Expected number of rows of a table that a batch wants.
  double distinct_rows() const {
    const auto draws = static_cast<double>(samples_ * lookups_), rows = static_cast<double>(rows_);
    if (!skewed_) return rows * (1 - std::exp(draws * std::log1p(-1 / rows)));
    double weights = 0, distinct = 0;
    for (std::size_t k = 1; k <= rows_; ++k) weights += std::pow(k, -skew);
    for (std::size_t k = 1; k <= rows_; ++k) distinct += 1 - std::exp(draws * std::log1p(-std::pow(k, -skew) / weights));
    return distinct;
  }
  std::vector<double> through(std::size_t layer, const std::vector<double>& x) const {
    std::vector<double> result(layers_[layer].out);
    for (std::size_t o = 0; o < result.size(); ++o) {
      double sum = layers_[layer].bias.host(o);
      for (std::size_t i = 0; i < x.size(); ++i) sum += weights_[layer][o * x.size() + i] * x[i];
      result[o] = std::max(sum, 0.0);
    }
    return result;
  }

  void tune(Launch& launch) {
    for (Layer& layer : layers_) {
      const bf16* const x = layer.in == dense ? dense_.get() : layer.in == features ? features_.get() : side_by_side_.get();
      layer.product.tune(launch, x, layer.weights, layer.result);
      layer.with_epilogue.tune(launch, x, layer.weights, layer.result);
    }
    bottom_in_place_.tune(launch, layers_[1].result, layers_[2].weights, side_by_side_);
  }
  template <Step step>
  void work(Launch& launch) {
    bottom<step>(launch);
    if constexpr (step == Step::interaction) {
      launch(gather_and_interact_kernel, {blocks(samples_ * 32), threads, warps * sizeof(Vectors)}, bags(),
             packets(layers_[2].result.get()), packets(features_.get()));
    } else {
      if constexpr (step == Step::separate) {
        for (unsigned table = 0; table < tables; ++table)
          launch(bags_kernel, {blocks(samples_ * lanes), threads}, bags(), table,
                 packets(pooled_.get() + table * samples_ * width), lanes, 0);
        launch(concatenate_kernel, {blocks(samples_ * vectors * lanes), threads}, packets(layers_[2].result.get()),
               packets(pooled_.get()), packets(side_by_side_.get()), samples_);
      } else gather_side_by_side(launch);
      multiply_pairs(launch);
      launch(triangle_kernel, {blocks(samples_ * 32), threads}, side_by_side_.get(), std::size_t{vectors} * width, squares_.get(),
             features_.get(), samples_);
    }
    top<step>(launch);
  }
  void gather_side_by_side(Launch& launch) {
    launch(bags_kernel, {dim3{blocks(samples_ * lanes), tables}, threads}, bags(), 0u, packets(side_by_side_.get() + width),
           std::size_t{vectors} * lanes, lanes);
  }
  template <Step step>
  void bottom(Launch& launch) {
    through_layer<step>(launch, layers_[0], dense_);
    through_layer<step>(launch, layers_[1], layers_[0].result);
    Layer& last = layers_[2];
    const bf16* const x = layers_[1].result;
    if constexpr (step == Step::batched) {
      last.product.run_tuned(launch, x, last.weights, last.result);
      add_bias(launch, last, side_by_side_, vectors * lanes);
    } else if constexpr (step == Step::epilogues) bottom_in_place_.run_tuned(launch, x, last.weights, side_by_side_);
    else through_layer<step>(launch, last, x);
  }
  template <Step step>
  void top(Launch& launch) {
    const bf16* x = features_;
    for (std::size_t i = bottom_layers; i < layers_.size(); ++i) {
      through_layer<step>(launch, layers_[i], x);
      x = layers_[i].result;
    }
    launch(score_kernel, {blocks(samples_ * 32), threads}, reinterpret_cast<const uint4*>(x),
           reinterpret_cast<const uint4*>(last_.get()), scores_.get(), samples_);
  }
  template <Step step>
  void through_layer(Launch& launch, Layer& layer, const bf16* x) {
    if constexpr (step >= Step::epilogues) layer.with_epilogue.run_tuned(launch, x, layer.weights, layer.result);
    else {
      layer.product.run_tuned(launch, x, layer.weights, layer.result);
      add_bias(launch, layer, layer.result, layer.out / 8);
    }
  }
  void add_bias(Launch& launch, const Layer& layer, bf16* to, std::size_t pitch_packets) const {
    const std::size_t count = samples_ * layer.out / 8;
    launch(bias_relu_kernel, {blocks(count), threads}, packets(layer.result.get()),
           reinterpret_cast<const uint4*>(layer.bias.get()), packets(to), layer.out / 8, pitch_packets, count);
  }
  // cuBLAS's matrices are column-major: it sees a sample's vectors as columns.
  void multiply_pairs(Launch& launch) {
    using StridedBatched =
        cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*, const void*,
                       cudaDataType_t, int, long long, const void*, cudaDataType_t, int, long long, const void*, void*,
                       cudaDataType_t, int, long long, int, cublasComputeType_t, cublasGemmAlgo_t);
    const auto gemm = Cublas::function<StridedBatched>("cublasGemmStridedBatchedEx");
    const float one = 1, zero = 0;
    constexpr long long in = vectors * width, out = vectors * square;
    cublas_->use(launch.stream);
    check(gemm(cublas_->handle(), CUBLAS_OP_T, CUBLAS_OP_N, vectors, vectors, width, &one, side_by_side_, CUDA_R_16BF, width, in,
               side_by_side_, CUDA_R_16BF, width, in, &zero, squares_, CUDA_R_16BF, square, out, static_cast<int>(samples_),
               CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }
  Bags bags() const {
    return {tables_,
            indices_,
            counts_,
            static_cast<unsigned>(rows_),
            static_cast<unsigned>(samples_),
            static_cast<unsigned>(lookups_)};
  }
  static uint4* packets(bf16* from) { return reinterpret_cast<uint4*>(from); }
  static unsigned blocks(std::size_t of_threads) { return static_cast<unsigned>((of_threads + threads - 1) / threads); }

  static constexpr double skew = 1.05;
  std::size_t samples_, lookups_, rows_;
  bool skewed_;
  Input<bf16> tables_;
  Input<int> indices_, counts_;
  Input<bf16> dense_, last_;
  Output<float> scores_;
  std::array<Layer, 7> layers_;
  LibraryMatmul bottom_in_place_;
  Scratch<bf16> pooled_, side_by_side_, squares_, features_;
  Opened<Cublas> cublas_;
  bool reproducible_;
  std::array<Graph, 4> graphs_;
  std::vector<std::vector<double>> weights_;  // for the reference
};

constexpr Needs libraries{.libraries = {Library::cublas, Library::cublaslt}};

}  // namespace

extern constinit const Pair dlrm_inference{
    .teaches = "a recommender is a chain of memory-bound pieces: gathering into the interaction removes its largest tensor",
    .lesson = "fused_interaction",
    .make = make<DlrmInference>,
    .baseline = {.name = "table_by_table",
                 .run = call<&DlrmInference::run<Step::separate>>,
                 .prepare = call<&DlrmInference::prepare<Step::separate>>},
    .optimized = variants({{.name = "batched_tables",
                            .run = call<&DlrmInference::run<Step::batched>>,
                            .prepare = call<&DlrmInference::prepare<Step::batched>>},
                           {.name = "mlp_epilogues",
                            .run = call<&DlrmInference::run<Step::epilogues>>,
                            .prepare = call<&DlrmInference::prepare<Step::epilogues>>},
                           {.name = "fused_interaction",
                            .run = call<&DlrmInference::run<Step::interaction>>,
                            .prepare = call<&DlrmInference::prepare<Step::interaction>>}}),
    .controls = variants({{.name = "gather_only", .run = call<&DlrmInference::gather_only>, .outputs = no_outputs},
                          {.name = "eager",
                           .run = call<&DlrmInference::eager>,
                           .prepare = call<&DlrmInference::prepare<Step::separate>>,
                           .same_bits_as = "table_by_table"}}),
    .bound = Bound::memory,
    // The baseline rounds to bf16 16 times in a row, twice in each of seven layers and each vector and product once, 1.6e-3 each:
    // 6.4e-3 of a logit's terms, which are about 1 together. Of an error of the logit a score has at most as much, relatively.
    .tolerance = within(6.5e-3, 2e-2),
    .needs = libraries,
    .sizes = sizes({{.name = "batch", .full = 16384, .multiple = 8, .most = 1 << 17},
                    {.name = "lookups", .full = 8, .most = 64, .scales = false},
                    {.name = "rows", .full = 400000, .least = 8, .most = 1 << 22},
                    option("skewed"),
                    option("planted")}),
    .sweep = cases({{"batch_128", "batch=128"},
                    {"batch_2048", "batch=2048"},
                    {"batch_16384", "batch=16384"},
                    {"batch_65536", "batch=65536"},
                    {"one_lookup", "lookups=1"},
                    {"lookups_32", "lookups=32"},
                    {"skewed", "skewed=1"}}),
    .edges = cases({{"eight_samples", "batch=8,rows=1000"},
                    {"bags_of_0_1_and_8", "batch=264,rows=5000,planted=1"},
                    {"bags_of_0_1_and_11", "batch=136,rows=8,lookups=11,planted=1"},
                    {"one_lookup", "batch=1016,lookups=1,rows=300"}}),
    .reference_samples = 256,
};

}  // namespace aisp::ch20
