// SPDX-License-Identifier: Apache-2.0
// C = A B in fp32. The plain product makes two loads for every FMA, and an SM's load unit takes one instruction where its FMA
// units take four. Caches hide where the values come from, nothing hides the loads themselves. Tiles in shared memory make them
// cheaper, but it takes several outputs a thread to make them fewer: r x c outputs share r + c loaded values, and wide loads
// divide those by four.
#include <aisp/device/vector.cuh>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

namespace aisp::ch07 {
namespace {

constexpr int columns = 4096, depth = 4096;
constexpr int square = 32;  // block and tile of the kernels with an output a thread
constexpr int lines = 16;   // threads of a block of the others along rows and columns
constexpr int threads = lines * lines;
constexpr int slice = 16;        // of the depth, in shared memory at a time
constexpr int most_outputs = 8;  // of a thread along rows and columns

__global__ __launch_bounds__(square* square) void plain_kernel(const float* a, const float* b, float* c) {
  const std::size_t row = blockIdx.y * square + threadIdx.y, column = blockIdx.x * square + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < depth; ++k) sum += a[row * depth + k] * b[std::size_t(k) * columns + column];
  c[row * columns + column] = sum;
}

__global__ __launch_bounds__(square* square) void tiled_kernel(const float* a, const float* b, float* c) {
  __shared__ float a_tile[square][square], b_tile[square][square];
  const std::size_t row = blockIdx.y * square + threadIdx.y, column = blockIdx.x * square + threadIdx.x;
  float sum = 0;
  for (int first = 0; first < depth; first += square) {
    a_tile[threadIdx.y][threadIdx.x] = a[row * depth + first + threadIdx.x];
    b_tile[threadIdx.y][threadIdx.x] = b[(std::size_t(first) + threadIdx.y) * columns + column];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < square; ++k) sum += a_tile[threadIdx.y][k] * b_tile[k][threadIdx.x];
    __syncthreads();
  }
  c[row * columns + column] = sum;
}

// A thread's outputs along one side of the tile come in groups of up to four neighbours, which one load brings; the groups are a
// quarter of a block's threads times four apart, so that neighbouring threads' groups lie side by side.
template <int outputs>
struct Side {
  static constexpr int group = outputs < 4 ? outputs : 4;
  static constexpr int length = lines * outputs;  // of the tile
  // Where the thread's value `i` lies.
  static __device__ int at(int thread, int i) { return i / group * lines * group + thread * group + i % group; }

  static __device__ void load(const float* from, int thread, float (&values)[outputs]) {
    using Group = device::Vector<float, group>;
#pragma unroll
    for (int i = 0; i < outputs; i += group) {
      const Group loaded = *reinterpret_cast<const Group*>(from + at(thread, i));
#pragma unroll
      for (int k = 0; k < group; ++k) values[i + k] = loaded[k];
    }
  }
};

// Deals the numbers below `count` out to the threads of a block.
template <int count, class Use>
__device__ void for_each(Use use) {
#pragma unroll
  for (int first = 0; first < count; first += threads) {
    const int i = first + static_cast<int>(threadIdx.x);
    if (count % threads == 0 || i < count) use(i);
  }
}

// A's slice lies transposed in shared memory, so that a thread's rows are neighbours there; four floats more a line spread the
// stores of that over the banks. The threads of a warp form 4 rows of 8, whose loads touch the fewest different words.
template <int row_outputs, int column_outputs>
__global__ __launch_bounds__(threads, row_outputs* column_outputs > 16 ? 2 : 4) void register_tile_kernel(const float* a,
                                                                                                          const float* b,
                                                                                                          float* c) {
  using Rows = Side<row_outputs>;
  using Columns = Side<column_outputs>;
  __shared__ alignas(16) float a_slice[slice][Rows::length + 4];
  __shared__ alignas(16) float b_slice[slice][Columns::length];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int y = warp / 2 * 4 + lane / 8, x = warp % 2 * 8 + lane % 8;
  const std::size_t top = blockIdx.y * Rows::length, left = blockIdx.x * Columns::length;
  float sum[row_outputs][column_outputs] = {};
  for (int first = 0; first < depth; first += slice) {
    for_each<Rows::length * slice / 4>([&](int i) {
      const int row = i / (slice / 4), k = i % (slice / 4) * 4;
      const float4 loaded = *reinterpret_cast<const float4*>(a + (top + row) * depth + first + k);
      a_slice[k][row] = loaded.x, a_slice[k + 1][row] = loaded.y, a_slice[k + 2][row] = loaded.z, a_slice[k + 3][row] = loaded.w;
    });
    for_each<Columns::length * slice / 4>([&](int i) {
      const int k = i / (Columns::length / 4), column = i % (Columns::length / 4) * 4;
      *reinterpret_cast<float4*>(&b_slice[k][column]) =
          *reinterpret_cast<const float4*>(b + (std::size_t(first) + k) * columns + left + column);
    });
    __syncthreads();
#pragma unroll
    for (int k = 0; k < slice; ++k) {
      float from_a[row_outputs], from_b[column_outputs];
      Rows::load(a_slice[k], y, from_a);
      Columns::load(b_slice[k], x, from_b);
#pragma unroll
      for (int i = 0; i < row_outputs; ++i)
#pragma unroll
        for (int j = 0; j < column_outputs; ++j) sum[i][j] = fmaf(from_a[i], from_b[j], sum[i][j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < row_outputs; ++i)
#pragma unroll
    for (int j = 0; j < column_outputs; j += Columns::group) {
      using Group = device::Vector<float, Columns::group>;
      Group stored;
#pragma unroll
      for (int k = 0; k < Columns::group; ++k) stored[k] = sum[i][j + k];
      *reinterpret_cast<Group*>(c + (top + Rows::at(y, i)) * columns + left + Columns::at(x, j)) = stored;
    }
}

class Matmul final : public Workload {
 public:
  explicit Matmul(Setup& setup)
      : rows_{setup.scaled(2048, lines * most_outputs)},
        outputs_{setup.size("outputs")},
        a_{setup.input<float>(rows_ * depth, uniform(-1, 1), {.name = "A"})},
        b_{setup.input<float>(std::size_t{depth} * columns, uniform(-1, 1), {.name = "B"})},
        c_{setup.output<float>(rows_ * columns, {.name = "C"})},
        lt_{setup,
            {.m = rows_,
             .n = columns,
             .k = depth,
             .operands = CUDA_R_32F,
             .result = CUDA_R_32F,
             .compute = CUBLAS_COMPUTE_32F_PEDANTIC}} {}

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(c_.size()) * depth,
            .bytes = static_cast<double>(a_.bytes() + b_.bytes() + c_.bytes())};
  }
  double expected(std::size_t i) const override {
    double sum = 0;
    for (std::size_t k = 0; k < depth; ++k) sum += a_.host(i / columns * depth + k) * b_.host(k * columns + i % columns);
    return sum;
  }

  void plain(Launch& launch) { launch(plain_kernel, one_output(), a_, b_, c_); }
  void tiled(Launch& launch) { launch(tiled_kernel, one_output(), a_, b_, c_); }
  template <int row_outputs, int column_outputs>
  void register_tile(Launch& launch) {
    const dim3 blocks{columns / Side<column_outputs>::length, static_cast<unsigned>(rows_ / Side<row_outputs>::length)};
    launch(register_tile_kernel<row_outputs, column_outputs>, {blocks, threads}, a_, b_, c_);
  }
  void chosen_outputs(Launch& launch) {
    switch (outputs_) {
      case 1: return register_tile<1, 1>(launch);
      case 2: return register_tile<1, 2>(launch);
      case 4: return register_tile<2, 2>(launch);
      case 8: return register_tile<2, 4>(launch);
      case 16: return register_tile<4, 4>(launch);
      case 32: return register_tile<4, 8>(launch);
      case 64: return register_tile<8, 8>(launch);
      default: throw Unsupported{"threads are compiled for 1, 2, 4, 8, 16, 32 and 64 outputs"};
    }
  }
  void cublaslt(Launch& launch) { lt_.run(launch, a_, b_, c_); }
  void tune(Launch& launch) { lt_.tune(launch, a_, b_, c_); }
  void cublaslt_tuned(Launch& launch) { lt_.run_tuned(launch, a_, b_, c_); }

 private:
  Grid one_output() const {
    return {.blocks = dim3{columns / square, static_cast<unsigned>(rows_ / square)}, .threads = dim3{square, square}};
  }

  std::size_t rows_, outputs_;  // outputs: of a thread of chosen_outputs
  Input<float> a_, b_;
  Output<float> c_;
  LibraryMatmul lt_;
};

}  // namespace

extern constinit const Pair matmul{
    .teaches =
        "the plain product makes two loads for every FMA, and the load unit takes one instruction where the FMA units take "
        "four: tiles make loads cheaper, several outputs a thread make them fewer",
    .lesson = "tiled_4x4",
    .make = make<Matmul>,
    .baseline = {.name = "plain", .run = call<&Matmul::plain>},
    .optimized = variants({{.name = "tiled", .run = call<&Matmul::tiled>},
                           {.name = "tiled_4x4", .run = call<&Matmul::register_tile<4, 4>>},
                           {.name = "tiled_8x8", .run = call<&Matmul::register_tile<8, 8>>}}),
    // The same kernel with as many outputs a thread as the size says.
    .controls = variants({{.name = "chosen_outputs", .run = call<&Matmul::chosen_outputs>}}),
    .libraries = variants({{.name = "cublaslt", .run = call<&Matmul::cublaslt>, .needs = {.libraries = {Library::cublaslt}}},
                           {.name = "cublaslt_tuned",
                            .run = call<&Matmul::cublaslt_tuned>,
                            .prepare = call<&Matmul::tune>,
                            .needs = {.libraries = {Library::cublaslt}}}}),
    .bound = Bound::compute,
    .tolerance = reduction_of(depth),
    .sizes = sizes({{.name = "outputs", .full = 8, .most = 64, .scales = false}}),
    .sweep = cases({{"outputs_1", "outputs=1"},
                    {"outputs_2", "outputs=2"},
                    {"outputs_4", "outputs=4"},
                    {"outputs_8", "outputs=8"},
                    {"outputs_16", "outputs=16"},
                    {"outputs_32", "outputs=32"},
                    {"outputs_64", "outputs=64"}}),
    .edges = cases({{"outputs_1", "outputs=1"}, {"outputs_3", "outputs=3"}}),
};

}  // namespace aisp::ch07
