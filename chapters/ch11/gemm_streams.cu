// SPDX-License-Identifier: Apache-2.0
// The encoder towers of a multimodal model know nothing of one another, and each is a chain of products too small for the GPU:
// 256 rows of a 2048-wide tower are 16 tiles of 128 x 256. Tower after tower, the GPU waits at each border. On a stream each,
// with a handle and a workspace each, the towers hide each other's borders. Idle SMs are filled only where the library leaves
// any: it has small tiles and split K for such shapes. The control, a graph of the baseline, tells launches from gaps.
#include <cuda_bf16.h>
#include <aisp/graph.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace aisp::ch11 {
namespace {

using bf16 = __nv_bfloat16;
constexpr std::size_t towers = 4, depth = 12, expansion = 4;
constexpr std::size_t base_rows = 1024;  // of the first tower; the others' follow
struct Shape {
  std::size_t rows, width;
};
constexpr std::array<Shape, towers> full_shapes{{{1024, 768}, {1500, 1024}, {512, 2048}, {256, 1280}}};
constexpr std::size_t longest = 2;  // the tower with the most FLOPs

// C = A B of row-major matrices in float64, 64 x 64 elements a block.
constexpr unsigned tile = 64, tile_depth = 16, reference_threads = 256;
__global__ __launch_bounds__(reference_threads) void reference_kernel(const double* a, const bf16* b, double* c, unsigned m,
                                                                      unsigned n, unsigned k) {
  __shared__ double of_a[tile_depth][tile + 1], of_b[tile_depth][tile + 1];
  const unsigned x = threadIdx.x % 16, y = threadIdx.x / 16, top = blockIdx.y * tile, left = blockIdx.x * tile;
  double sums[4][4] = {};
  for (unsigned first = 0; first < k; first += tile_depth) {
    for (unsigned i = threadIdx.x; i < tile * tile_depth; i += reference_threads) {
      const unsigned row = top + i / tile_depth, column = left + i % tile;
      of_a[i % tile_depth][i / tile_depth] = row < m ? a[std::size_t{row} * k + first + i % tile_depth] : 0;
      of_b[i / tile][i % tile] = static_cast<double>(__bfloat162float(b[std::size_t{first + i / tile} * n + column]));
    }
    __syncthreads();
    for (unsigned step = 0; step < tile_depth; ++step)
      for (unsigned r = 0; r < 4; ++r)
        for (unsigned s = 0; s < 4; ++s) sums[r][s] += of_a[step][y + r * 16] * of_b[step][x + s * 16];
    __syncthreads();
  }
  for (unsigned r = 0; r < 4; ++r)
    for (unsigned s = 0; s < 4; ++s)
      if (top + y + r * 16 < m) c[std::size_t{top + y + r * 16} * n + left + x + s * 16] = sums[r][s];
}

// Twelve blocks of two products each: width to four times the width and back.
class Tower {
 public:
  Tower(Setup& setup, Shape shape)
      : shape_{shape},
        up_{setup.input<bf16>(depth * weights_of_one(), normal(0, 1 / std::sqrt(static_cast<float>(shape.width))),
                              {.name = "weights up", .constant = true})},
        down_{setup.input<bf16>(depth * weights_of_one(), normal(0, 0.5f / std::sqrt(static_cast<float>(shape.width))),
                                {.name = "weights down", .constant = true})},
        in_{setup.input<bf16>(values(), normal(0, 1), {.name = "tokens"})},
        out_{setup.output<bf16>(values(), {.name = "encoded"})},
        hidden_{setup.scratch<bf16>(expansion * values())},
        between_{setup.scratch<bf16>(values())},
        cublas_{setup},
        lt_{setup},
        plan_up_{setup, lt_, MatmulProblem{.m = shape.rows, .n = expansion * shape.width, .k = shape.width}},
        plan_down_{setup, lt_, MatmulProblem{.m = shape.rows, .n = shape.width, .k = expansion * shape.width}} {}

  double flops() const { return 2.0 * 2 * depth * static_cast<double>(values() * expansion * shape_.width); }
  double bytes() const { return static_cast<double>(up_.bytes() + down_.bytes() + in_.bytes() + out_.bytes()); }
  const Shape& shape() const { return shape_; }

  // The products' inputs, weights and outputs, in their order.
  struct Operands {
    const bf16 *a, *b;
    bf16* c;
  };
  Operands up(std::size_t block) const { return {input_of(block), up_ + block * weights_of_one(), hidden_}; }
  Operands down(std::size_t block) const {
    return {hidden_.get(), down_ + block * weights_of_one(), block + 1 == depth ? out_.get() : between_.get()};
  }

  void queue_cublas(cudaStream_t stream) const {
    for (std::size_t block = 0; block < depth; ++block) {
      const Operands first = up(block), second = down(block);
      cublas_->gemm(stream, shape_.rows, expansion * shape_.width, shape_.width, first.a, first.b, first.c, CUDA_R_16BF);
      cublas_->gemm(stream, shape_.rows, shape_.width, expansion * shape_.width, second.a, second.b, second.c, CUDA_R_16BF);
    }
  }
  void tune(cudaStream_t stream) const {
    plan_up_->tune(stream, [&](auto one) {
      for (std::size_t block = 0; block < depth; ++block) one(up(block).a, up(block).b, up(block).c);
    });
    plan_down_->tune(stream, [&](auto one) {
      for (std::size_t block = 0; block < depth; ++block) one(down(block).a, down(block).b, down(block).c);
    });
  }
  void queue_tuned(cudaStream_t stream) const {
    for (std::size_t block = 0; block < depth; ++block) {
      plan_up_->run(stream, up(block).a, up(block).b, up(block).c);
      plan_down_->run(stream, down(block).a, down(block).b, down(block).c);
    }
  }

  // `activations` has room for one and `wide` for four times the tower's values.
  void compute_reference(Launch& launch, double* activations, double* wide) {
    reference_.resize(values());
    for (std::size_t i = 0; i < values(); ++i) reference_[i] = in_.host(i);
    check(cudaMemcpyAsync(activations, reference_.data(), values() * sizeof(double), cudaMemcpyHostToDevice, launch.stream));
    const auto multiply = [&](const double* a, const bf16* b, double* c, std::size_t n, std::size_t k) {
      const dim3 blocks{static_cast<unsigned>(n / tile), static_cast<unsigned>((shape_.rows + tile - 1) / tile)};
      launch(reference_kernel, {blocks, reference_threads}, a, b, c, shape_.rows, n, k);
    };
    for (std::size_t block = 0; block < depth; ++block) {
      multiply(activations, up(block).b, wide, expansion * shape_.width, shape_.width);
      multiply(wide, down(block).b, activations, shape_.width, expansion * shape_.width);
    }
    check(cudaMemcpyAsync(reference_.data(), activations, values() * sizeof(double), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
  }
  double expected(std::size_t index) const { return reference_[index]; }
  std::size_t values() const { return shape_.rows * shape_.width; }

 private:
  std::size_t weights_of_one() const { return expansion * shape_.width * shape_.width; }
  const bf16* input_of(std::size_t block) const { return block == 0 ? in_.get() : between_.get(); }

  Shape shape_;
  Input<bf16> up_, down_, in_;
  Output<bf16> out_;
  Scratch<bf16> hidden_, between_;
  Opened<Cublas> cublas_;
  Opened<CublasLt> lt_;
  Opened<MatmulPlan> plan_up_, plan_down_;
  std::vector<double> reference_;
};

class GemmStreams final : public Workload {
 public:
  explicit GemmStreams(Setup& setup)
      : towers_{tower(setup, 0), tower(setup, 1), tower(setup, 2), tower(setup, 3)},
        exact_{setup.scratch<double>(largest())},
        exact_wide_{setup.scratch<double>(expansion * largest())},
        pointers_{setup.scratch<const void*>(depth * 2 * 3 * towers)},
        cublas_{setup},
        urgent_{setup.stream(0, true)},
        forked_{setup.event()} {
    for (std::size_t t = 0; t < towers; ++t) streams_[t] = setup.stream(), done_[t] = setup.event();
  }

  Cost cost() const override {
    Cost cost{.math = Math::bf16};
    for (const Tower& tower : towers_) cost.flops += tower.flops(), cost.bytes += tower.bytes();
    return cost;
  }
  void compute_reference(Launch& launch) override {
    for (Tower& tower : towers_) tower.compute_reference(launch, exact_, exact_wide_);
  }
  double expected_output(int output, std::size_t index) const override {
    return towers_[static_cast<std::size_t>(output)].expected(index);
  }

  void one_stream(Launch& launch) { queue_in_turn(launch.stream); }
  void stream_per_tower(Launch& launch) {
    on_streams(launch, streams_, [](const Tower& tower, cudaStream_t stream) { tower.queue_cublas(stream); });
  }
  void stream_per_tower_priority(Launch& launch) {
    std::array<cudaStream_t, towers> streams = streams_;
    streams[longest] = urgent_;
    on_streams(launch, streams, [](const Tower& tower, cudaStream_t stream) { tower.queue_cublas(stream); });
  }
  void capture(Launch& launch) {
    queue_in_turn(launch.stream);  // code is loaded at its first launch, not while a capture is under way
    graph_.capture(launch.stream, [this](cudaStream_t stream) { queue_in_turn(stream); });
  }
  void captured_one_stream(Launch& launch) { graph_.launch(launch.stream); }

  void tune(Launch& launch) {
    for (const Tower& tower : towers_) tower.tune(launch.stream);
  }
  void tuned_one_stream(Launch& launch) {
    for (const Tower& tower : towers_) tower.queue_tuned(launch.stream);
  }
  void tuned_streams(Launch& launch) {
    on_streams(launch, streams_, [](const Tower& tower, cudaStream_t stream) { tower.queue_tuned(stream); });
  }

  // The library wants arrays of pointers on the device: for each of the 24 calls those of all A, B and C.
  void point(Launch& launch) {
    std::vector<const void*> pointers;
    for (std::size_t call = 0; call < 2 * depth; ++call) {
      std::array<Tower::Operands, towers> all;
      for (std::size_t t = 0; t < towers; ++t) all[t] = call % 2 == 0 ? towers_[t].up(call / 2) : towers_[t].down(call / 2);
      for (const auto& each : all) pointers.push_back(each.b);
      for (const auto& each : all) pointers.push_back(each.a);
      for (const auto& each : all) pointers.push_back(each.c);
    }
    check(cudaMemcpyAsync(pointers_, pointers.data(), pointers_.bytes(), cudaMemcpyHostToDevice, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
  }
  void grouped_gemm(Launch& launch) {
    using Grouped =
        cublasStatus_t(cublasHandle_t, const cublasOperation_t*, const cublasOperation_t*, const int*, const int*, const int*,
                       const void*, const void* const*, cudaDataType_t, const int*, const void* const*, cudaDataType_t,
                       const int*, const void*, void* const*, cudaDataType_t, const int*, int, const int*, cublasComputeType_t);
    const auto grouped = Cublas::function<Grouped>("cublasGemmGroupedBatchedEx");
    std::array<cublasOperation_t, towers> plain;
    std::array<int, towers> m, wide, narrow, one_each;
    std::array<float, towers> ones, zeros{};
    plain.fill(CUBLAS_OP_N), one_each.fill(1), ones.fill(1);
    for (std::size_t t = 0; t < towers; ++t) {
      m[t] = static_cast<int>(towers_[t].shape().rows);
      narrow[t] = static_cast<int>(towers_[t].shape().width);
      wide[t] = static_cast<int>(expansion) * narrow[t];
    }
    cublas_->use(launch.stream);
    for (std::size_t call = 0; call < 2 * depth; ++call) {
      const void** const of_call = pointers_ + call * 3 * towers;
      const std::array<int, towers>&n = call % 2 == 0 ? wide : narrow, &k = call % 2 == 0 ? narrow : wide;
      check(grouped(cublas_->handle(), plain.data(), plain.data(), n.data(), m.data(), k.data(), ones.data(), of_call,
                    CUDA_R_16BF, n.data(), of_call + towers, CUDA_R_16BF, k.data(), zeros.data(),
                    const_cast<void* const*>(of_call + 2 * towers), CUDA_R_16BF, n.data(), towers, one_each.data(),
                    CUBLAS_COMPUTE_32F));
    }
  }

 private:
  static Tower tower(Setup& setup, std::size_t t) {
    const Shape full = full_shapes[t];
    return Tower{setup, {full.rows * setup.size("rows") / base_rows, full.width}};
  }
  std::size_t largest() const {
    std::size_t most = 0;
    for (const Tower& tower : towers_) most = std::max(most, tower.values());
    return most;
  }
  void queue_in_turn(cudaStream_t stream) const {
    for (const Tower& tower : towers_) tower.queue_cublas(stream);
  }
  template <class Queue>
  void on_streams(Launch& launch, const std::array<cudaStream_t, towers>& streams, const Queue& queue) {
    check(cudaEventRecord(forked_, launch.stream));
    // The longest tower is queued first, so that it does not begin last.
    for (const std::size_t t : {longest, std::size_t{1}, std::size_t{0}, std::size_t{3}}) {
      check(cudaStreamWaitEvent(streams[t], forked_));
      queue(towers_[t], streams[t]);
      check(cudaEventRecord(done_[t], streams[t]));
    }
    for (const cudaEvent_t done : done_) check(cudaStreamWaitEvent(launch.stream, done));
  }

  std::array<Tower, towers> towers_;
  Scratch<double> exact_, exact_wide_;
  Scratch<const void*> pointers_;
  Opened<Cublas> cublas_;
  cudaStream_t urgent_;
  cudaEvent_t forked_;
  std::array<cudaStream_t, towers> streams_{};
  std::array<cudaEvent_t, towers> done_{};
  Graph graph_;
};

constexpr Needs cublas_alone{.libraries = {Library::cublas}}, cublaslt_alone{.libraries = {Library::cublaslt}};

}  // namespace

extern constinit const Pair gemm_streams{
    .teaches =
        "independent chains on streams hide the gaps between each other's GEMMs; SMs that the library fills they cannot fill "
        "again",
    .lesson = "stream_per_tower",
    .make = make<GemmStreams>,
    .baseline = {.name = "one_stream", .run = call<&GemmStreams::one_stream>, .needs = cublas_alone},
    .optimized = variants(
        {{.name = "stream_per_tower", .run = call<&GemmStreams::stream_per_tower>, .needs = cublas_alone},
         {.name = "stream_per_tower_priority", .run = call<&GemmStreams::stream_per_tower_priority>, .needs = cublas_alone}}),
    .controls = variants({{.name = "captured_one_stream",
                           .run = call<&GemmStreams::captured_one_stream>,
                           .prepare = call<&GemmStreams::capture>,
                           .needs = cublas_alone}}),
    .libraries = variants({{.name = "grouped_gemm",
                            .run = call<&GemmStreams::grouped_gemm>,
                            .prepare = call<&GemmStreams::point>,
                            .needs = cublas_alone},
                           {.name = "cublaslt_tuned",
                            .run = call<&GemmStreams::tuned_one_stream>,
                            .prepare = call<&GemmStreams::tune>,
                            .needs = cublaslt_alone},
                           {.name = "cublaslt_tuned_streams",
                            .run = call<&GemmStreams::tuned_streams>,
                            .prepare = call<&GemmStreams::tune>,
                            .needs = cublaslt_alone}}),
    .bound = Bound::compute,
    // Activations are rounded to bf16 after each of 24 products, 1.6e-3 each: 7.9e-3 in all.
    .tolerance = within(1e-2),
    .start = Start::immediate,  // 96 launches are part of it
    .timeline = true,
    .sizes = sizes({{.name = "rows", .full = base_rows / 2, .multiple = 64, .most = 4096}}),
    .sweep = cases({{"rows_256", "rows=256"}, {"rows_512", "rows=512"}, {"rows_1024", "rows=1024"}, {"rows_2048", "rows=2048"}}),
    .edges = cases({{"few_rows", "rows=64"}}),
};

}  // namespace aisp::ch11
