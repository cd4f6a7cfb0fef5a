// SPDX-License-Identifier: Apache-2.0
// The projections to queries, keys and values of 16 layers, for a decode batch of 128 rows: every weight is read once, and the
// time to read them is the limit. As three products a layer, those of keys and values are too narrow to keep all SMs loading, and
// each of the 48 has its own start and its own tail. They share their input, so that their weights can lie one after the other
// and one product with 6144 columns computes all three.
#include <cuda_bf16.h>
#include <aisp/graph.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <array>

namespace aisp::ch09 {
namespace {

using bf16 = __nv_bfloat16;

constexpr std::size_t depth = 4096;
constexpr std::array<std::size_t, 3> widths = {4096, 1024, 1024};  // of queries, keys and values
constexpr std::array<std::size_t, 3> begins = {0, 4096, 5120};
constexpr std::size_t columns = 6144;
constexpr std::size_t branch_space = std::size_t{8} << 20;  // bytes of workspace, for each product that may run beside another

__global__ void empty_kernel() {}

class QkvHorizontalFusion final : public Workload {
 public:
  explicit QkvHorizontalFusion(Setup& setup)
      : rows_{setup.size("rows")},
        layers_{setup.size("layers")},
        x_{setup.input<bf16>(layers_ * rows_ * depth, uniform(-1, 1), {.name = "activations"})},
        // [layer][column][depth], as a linear layer keeps them. Constant: they are packed in `prepare`.
        weights_{weights(setup, 0, "query weights"), weights(setup, 1, "key weights"), weights(setup, 2, "value weights")},
        packed_{setup.scratch<bf16>(layers_ * columns * depth, {.name = "packed weights"})},
        out_{setup.output<bf16>(layers_ * rows_ * columns, {.name = "q, k and v", .groups = {rows_ * columns, layers_}})},
        spaces_{setup.scratch<std::byte>(widths.size() * branch_space, {.name = "workspaces of the branches"})},
        forked_{setup.event()},
        streams_{setup.stream(), setup.stream()},
        joined_{setup.event(), setup.event()},
        reproducible_{setup.reproducible()},
        cublas_{setup},
        lt_{setup},
        wide_{setup, lt_, problem(widths[0])},
        narrow_{setup, lt_, problem(widths[1])},
        together_{setup, lt_, problem(columns)} {}

  // Layers follow one another: in a decoder each needs what the one before it has computed.
  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(out_.size()) * depth,
            .math = Math::bf16,
            .bytes = static_cast<double>(x_.bytes() + packed_.bytes() + out_.bytes()),
            .dependent_kernels = static_cast<double>(layers_)};
  }
  double expected(std::size_t index) const override {
    const std::size_t column = index % columns, row = index / columns, layer = row / rows_;
    const std::size_t part = column < begins[1] ? 0 : column < begins[2] ? 1 : 2;
    const std::size_t first = (layer * widths[part] + column - begins[part]) * depth;
    double sum = 0;
    for (std::size_t k = 0; k < depth; ++k) sum += x_.host(row * depth + k) * weights_[part].host(first + k);
    return sum;
  }

  void separate(Launch& launch) {
    cublas_->use(launch.stream);
    for (std::size_t layer = 0; layer < layers_; ++layer)
      for (std::size_t part = 0; part < widths.size(); ++part) cublas_product(layer, part);
  }

  void tune_separate(Launch& launch) {
    refuse_if_reproducible();
    wide_->tune(launch.stream, [this](auto product) { for_each_layer(0, product); });
    narrow_->tune(launch.stream, [this](auto product) { for_each_layer(1, product); });
  }
  void separate_lt(Launch& launch) {
    for (std::size_t layer = 0; layer < layers_; ++layer)
      for (std::size_t part = 0; part < widths.size(); ++part)
        (part == 0 ? wide_ : narrow_)->run(launch.stream, x(layer), w(layer, part), out(layer, part));
  }

  // A layer's three blocks of rows, one after the other.
  void pack(Launch& launch) {
    for (std::size_t part = 0; part < widths.size(); ++part) {
      const std::size_t bytes = widths[part] * depth * sizeof(bf16);
      check(cudaMemcpy2DAsync(packed_ + begins[part] * depth, columns * depth * sizeof(bf16), weights_[part], bytes, bytes,
                              layers_, cudaMemcpyDeviceToDevice, launch.stream));
    }
  }
  void packed_qkv(Launch& launch) {
    cublas_->use(launch.stream);
    for (std::size_t layer = 0; layer < layers_; ++layer)
      multiply(columns, x(layer), packed_ + layer * columns * depth, out(layer, 0));
  }

  void pack_and_tune(Launch& launch) {
    refuse_if_reproducible();
    pack(launch);
    together_->tune(launch.stream, [this](auto product) {
      for (std::size_t layer = 0; layer < layers_; ++layer) product(x(layer), packed_ + layer * columns * depth, out(layer, 0));
    });
  }
  void packed_qkv_lt(Launch& launch) { packed_lt(launch, 0); }
  // As many launches as without packing.
  void packed_lt_and_empty_launches(Launch& launch) { packed_lt(launch, 2); }

  // Code is loaded at its first launch, not while a capture is under way: hence one run before it.
  void capture(Launch& launch) {
    queue_branches(launch.stream);
    branched_.capture(launch.stream, [this](cudaStream_t stream) { queue_branches(stream); });
  }
  void three_streams(Launch& launch) { branched_.launch(launch.stream); }

 private:
  Input<bf16> weights(Setup& setup, std::size_t part, const char* name) const {
    return setup.input<bf16>(layers_ * widths[part] * depth, uniform(-1, 1), {.name = name, .constant = true});
  }
  // Rows of all three outputs are parts of rows of one matrix.
  MatmulProblem problem(std::size_t width) const {
    return {.m = rows_, .n = width, .k = depth, .b_is_transposed = true, .c_pitch = columns};
  }
  void refuse_if_reproducible() const {
    if (reproducible_) throw Unsupported{not_reproducible};
  }

  const bf16* x(std::size_t layer) const { return x_ + layer * rows_ * depth; }
  const bf16* w(std::size_t layer, std::size_t part) const { return weights_[part] + layer * widths[part] * depth; }
  bf16* out(std::size_t layer, std::size_t part) const { return out_ + layer * rows_ * columns + begins[part]; }

  template <class Product>
  void for_each_layer(std::size_t part, const Product& product) const {
    for (std::size_t layer = 0; layer < layers_; ++layer) product(x(layer), w(layer, part), out(layer, part));
  }
  void packed_lt(Launch& launch, int empty_launches) const {
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      together_->run(launch.stream, x(layer), packed_ + layer * columns * depth, out(layer, 0));
      for (int i = 0; i < empty_launches; ++i) launch(empty_kernel, {1, 32});
    }
  }

  // cuBLAS is column-major: it computes C^T = W X^T, of which it sees W transposed.
  void multiply(std::size_t width, const bf16* x, const bf16* w, bf16* out) const {
    const auto gemm = Cublas::function<Cublas::GemmEx>("cublasGemmEx");
    const float one = 1, zero = 0;
    const int k = static_cast<int>(depth);
    check(gemm(cublas_->handle(), CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(width), static_cast<int>(rows_), k, &one, w,
               CUDA_R_16BF, k, x, CUDA_R_16BF, k, &zero, out, CUDA_R_16BF, static_cast<int>(columns), CUBLAS_COMPUTE_32F,
               CUBLAS_GEMM_DEFAULT));
  }
  void cublas_product(std::size_t layer, std::size_t part) const {
    multiply(widths[part], x(layer), w(layer, part), out(layer, part));
  }
  // A layer's products side by side, layer after layer.
  void queue_branches(cudaStream_t stream) const {
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      check(cudaEventRecord(forked_, stream));
      for (std::size_t part = 0; part < widths.size(); ++part) {
        const cudaStream_t on = part == 0 ? stream : streams_[part - 1];
        if (part > 0) check(cudaStreamWaitEvent(on, forked_));
        cublas_->use(on, {spaces_ + part * branch_space, branch_space});
        cublas_product(layer, part);
        if (part > 0) check(cudaEventRecord(joined_[part - 1], on));
      }
      for (const cudaEvent_t joined : joined_) check(cudaStreamWaitEvent(stream, joined));
    }
  }

  std::size_t rows_, layers_;
  Input<bf16> x_;
  std::array<Input<bf16>, 3> weights_;
  Scratch<bf16> packed_;
  Output<bf16> out_;
  Scratch<std::byte> spaces_;
  cudaEvent_t forked_;
  std::array<cudaStream_t, 2> streams_;
  std::array<cudaEvent_t, 2> joined_;
  bool reproducible_;
  Opened<Cublas> cublas_;
  Opened<CublasLt> lt_;
  Opened<MatmulPlan> wide_, narrow_, together_;
  Graph branched_;
};

constexpr Needs by_cublas{.libraries = {Library::cublas}}, by_cublaslt{.libraries = {Library::cublaslt}};

}  // namespace

extern constinit const Pair qkv_horizontal_fusion{
    .teaches = "products that share an input are one wider product: it fills the SMs, reads the input once and starts once",
    .lesson = "packed_qkv_lt",
    .make = make<QkvHorizontalFusion>,
    .baseline = {.name = "separate", .run = call<&QkvHorizontalFusion::separate>, .needs = by_cublas},
    // Packing is to be told from a better choice of the algorithm: the lesson's gain is over three products that are chosen as it
    // is.
    .optimized = variants({{.name = "separate_lt",
                            .run = call<&QkvHorizontalFusion::separate_lt>,
                            .prepare = call<&QkvHorizontalFusion::tune_separate>,
                            .needs = by_cublaslt,
                            .best_of = {"separate"}},
                           {.name = "packed_qkv",
                            .run = call<&QkvHorizontalFusion::packed_qkv>,
                            .prepare = call<&QkvHorizontalFusion::pack>,
                            .needs = by_cublas,
                            .gains_over = "separate"},
                           {.name = "packed_qkv_lt",
                            .run = call<&QkvHorizontalFusion::packed_qkv_lt>,
                            .prepare = call<&QkvHorizontalFusion::pack_and_tune>,
                            .needs = by_cublaslt,
                            .gains_over = "separate_lt",
                            .best_of = {"packed_qkv"}}}),
    // The three products side by side without packing; and the packed ones with as many launches as the three.
    .controls = variants({{.name = "three_streams",
                           .run = call<&QkvHorizontalFusion::three_streams>,
                           .prepare = call<&QkvHorizontalFusion::capture>,
                           .needs = by_cublas},
                          {.name = "packed_lt_and_empty_launches",
                           .run = call<&QkvHorizontalFusion::packed_lt_and_empty_launches>,
                           .prepare = call<&QkvHorizontalFusion::pack_and_tune>,
                           .needs = by_cublaslt,
                           .same_bits_as = "packed_qkv_lt"}}),
    // One rounding to bf16 is 1.6e-3; a library that splits K may round its parts, too.
    .tolerance = within(4e-3),
    .sizes = sizes({{.name = "rows", .full = 128, .most = 4096, .scales = false}, {.name = "layers", .full = 16, .most = 64}}),
    .sweep = cases({{"rows_1", "rows=1"},
                    {"rows_16", "rows=16"},
                    {"rows_128", "rows=128"},
                    {"rows_512", "rows=512"},
                    {"rows_2048", "rows=2048"}}),
    .edges = cases({{"one_row", "rows=1,layers=1"}, {"odd_rows", "rows=37,layers=2"}}),
};

}  // namespace aisp::ch09
