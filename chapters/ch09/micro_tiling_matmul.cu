// SPDX-License-Identifier: Apache-2.0
// C = A B in fp32 from tiles in shared memory. With one output a thread, every FMA needs two values from there, and shared memory
// delivers 32 a cycle where 128 FMAs want 256. A register tile of r x c outputs needs r + c values for r * c FMAs: 16 for 64,
// fetched 16 bytes at a time. Then FMA units are the limit, as long as copies are hidden, no two lanes meet in a bank of shared
// memory, and no two operands of an FMA in a bank of the registers.
#include <aisp/device/async_copy.cuh>
#include <aisp/device/vector.cuh>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <cmath>

namespace aisp::ch09 {
namespace {

constexpr int columns = 4096, depth = 2048;
constexpr int square = 32;                               // tile of the kernel with one output a thread
constexpr int stack = 8, stacked = 64, short_slice = 8;  // of the kernel with a column of eight outputs
constexpr int stack_threads = stacked * stacked / stack;
constexpr int lines = 16, threads = lines * lines;  // of the kernels with register tiles
constexpr int slice = 16, part = 8;                 // depth of their slices; what eight lanes read of a row of A
constexpr int padding = 4;                          // floats after a line of A's slice, so that transposing hits all banks

__global__ __launch_bounds__(square* square) void one_output_kernel(const float* a, const float* b, float* c) {
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

// A value of B serves eight rows.
__global__ __launch_bounds__(stack_threads) void column_of_8_kernel(const float* a, const float* b, float* c) {
  __shared__ float a_tile[stacked][short_slice], b_tile[short_slice][stacked];
  const int column = threadIdx.x % stacked, row = threadIdx.x / stacked * stack;
  const std::size_t top = blockIdx.y * stacked, left = blockIdx.x * stacked;
  float sums[stack] = {};
  for (int first = 0; first < depth; first += short_slice) {
    const int a_row = threadIdx.x / short_slice, k_of_a = threadIdx.x % short_slice, k_of_b = threadIdx.x / stacked;
    a_tile[a_row][k_of_a] = a[(top + a_row) * depth + first + k_of_a];
    b_tile[k_of_b][column] = b[(std::size_t(first) + k_of_b) * columns + left + column];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < short_slice; ++k) {
      const float from_b = b_tile[k][column];
#pragma unroll
      for (int i = 0; i < stack; ++i) sums[i] = fmaf(a_tile[row + i][k], from_b, sums[i]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < stack; ++i) c[(top + row + i) * columns + left + column] = sums[i];
}

// Which outputs of the block's tile a thread has, in groups of neighbours that one access moves. Here they are some rows of up to
// four columns, and the groups of threads follow one another along the rows; eight columns are two groups, half a tile apart.
// Eight lanes, which are served together, then read neighbouring groups of B, from different banks.
template <int rows_, int columns_>
struct Rectangle {
  static constexpr int rows = rows_, columns = columns_, height = lines * rows, width = lines * columns;
  static constexpr int group = columns < 4 ? columns : 4;
  static __device__ int row(int i) { return static_cast<int>(threadIdx.x) / lines * rows + i; }
  static __device__ int column(int j) {
    return j / group * lines * group + static_cast<int>(threadIdx.x) % lines * group + j % group;
  }
};
// Here a warp has 64 x 32 outputs, and a thread four groups of 4 x 4, half of the warp's height and width apart. For A and for B
// a lane wants the same as a neighbour (the next lane, or the one after it), and shared memory serves such pairs at once: two
// cycles for 16 bytes a lane instead of four.
struct WarpTile {
  static constexpr int rows = 8, columns = 8, height = lines * rows, width = lines * columns;
  static __device__ int row(int i) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    return warp / 4 * 64 + i / 4 * 32 + lane / 2 % 8 * 4 + i % 4;
  }
  static __device__ int column(int j) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    return warp % 4 * 32 + j / 4 * 16 + (lane % 2 + lane / 16 * 2) * 4 + j % 4;
  }
};

template <class Tile>
struct Slices {
  alignas(16) float a[slice][Tile::height + padding];  // transposed, so that rows are neighbours
  alignas(16) float b[slice][Tile::width];
};

template <int count, class Place>
__device__ __forceinline__ void load(const float* from, Place place, float (&values)[count]) {
  constexpr int group = count < 4 ? count : 4;
  using Group = device::Vector<float, group>;
#pragma unroll
  for (int i = 0; i < count; i += group) {
    const Group loaded = *reinterpret_cast<const Group*>(from + place(i));
#pragma unroll
    for (int k = 0; k < group; ++k) values[i + k] = loaded[k];
  }
}

// An FMA reads three registers. They lie in two banks, each of which delivers one a cycle, and a cycle is all that an FMA has.
// But what it has in common with the one before it is not read again: in the order of a snake that is one operand every time.
template <class Tile, bool in_a_snake>
__device__ __forceinline__ void multiply(const Slices<Tile>& from, float (&sums)[Tile::rows][Tile::columns]) {
#pragma unroll
  for (int k = 0; k < slice; ++k) {
    float of_a[Tile::rows], of_b[Tile::columns];
    load(
        from.a[k], [](int i) { return Tile::row(i); }, of_a);
    load(
        from.b[k], [](int j) { return Tile::column(j); }, of_b);
#pragma unroll
    for (int i = 0; i < Tile::rows; ++i)
#pragma unroll
      for (int step = 0; step < Tile::columns; ++step) {
        const int j = in_a_snake && i % 2 == 1 ? Tile::columns - 1 - step : step;
        sums[i][j] = fmaf(of_a[i], of_b[j], sums[i][j]);
      }
  }
}

// free_registers: a store of 16 bytes takes four neighbouring registers, and sums that live in them are in the banks that the
// values of B are in, which are loaded four at a time. An addition of zero, after the loop, lets the sums live elsewhere.
template <class Tile, bool free_registers = false>
__device__ __forceinline__ void store(float* c, const float (&sums)[Tile::rows][Tile::columns]) {
  const std::size_t top = blockIdx.y * Tile::height, left = blockIdx.x * Tile::width;
#pragma unroll
  for (int i = 0; i < Tile::rows; ++i) {
    float* const row = c + (top + Tile::row(i)) * columns + left;
    if constexpr (Tile::columns % 4 == 0) {
#pragma unroll
      for (int j = 0; j < Tile::columns; j += 4) {  // an assignment would be cut into four stores
        float4 four = make_float4(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]);
        if constexpr (free_registers) four.x += 0.0f, four.y += 0.0f, four.z += 0.0f, four.w += 0.0f;
        __stwb(reinterpret_cast<float4*>(row + Tile::column(j)), four);
      }
    } else {
#pragma unroll
      for (int j = 0; j < Tile::columns; ++j) row[Tile::column(j)] = sums[i][j];
    }
  }
}

// Deals the numbers below `count` out to the threads of a block.
template <int count, class Use>
__device__ __forceinline__ void for_each(Use use) {
#pragma unroll
  for (int first = 0; first < count; first += threads) {
    const int i = first + static_cast<int>(threadIdx.x);
    if (count % threads == 0 || i < count) use(i);
  }
}

template <class Tile>
constexpr int blocks_an_sm = Tile::rows* Tile::columns > 16 ? 2 : 4;

template <class Tile>
__global__ __launch_bounds__(threads, blocks_an_sm<Tile>) void register_tile_kernel(const float* a, const float* b, float* c) {
  __shared__ Slices<Tile> slices;
  const std::size_t top = blockIdx.y * Tile::height, left = blockIdx.x * Tile::width;
  float sums[Tile::rows][Tile::columns] = {};
  for (int first = 0; first < depth; first += slice) {
    for_each<Tile::height * slice / 4>([&](int i) {
      const int row = i % (Tile::height * 2) / 2, k = i / (Tile::height * 2) * part + i % 2 * 4;
      const float4 loaded = *reinterpret_cast<const float4*>(a + (top + row) * depth + first + k);
      slices.a[k][row] = loaded.x, slices.a[k + 1][row] = loaded.y;
      slices.a[k + 2][row] = loaded.z, slices.a[k + 3][row] = loaded.w;
    });
    for_each<Tile::width * slice / 4>([&](int i) {
      const int k = i / (Tile::width / 4), column = i % (Tile::width / 4) * 4;
      *reinterpret_cast<float4*>(&slices.b[k][column]) =
          *reinterpret_cast<const float4*>(b + (std::size_t(first) + k) * columns + left + column);
    });
    __syncthreads();
    multiply<Tile, false>(slices, sums);
    __syncthreads();
  }
  store<Tile>(c, sums);
}

// Two slices: one is copied while the other is multiplied. A copy that transposes moves 4 bytes at a time.
// operands_reused: by the order of the FMAs, and by registers for the sums that leave those of the operands their banks.
template <class Tile, bool operands_reused = false>
__global__ __launch_bounds__(threads, 2) void async_copy_kernel(const float* a, const float* b, float* c) {
  __shared__ Slices<Tile> slices[2];
  static_assert(depth % (2 * slice) == 0);
  const std::size_t top = blockIdx.y * Tile::height, left = blockIdx.x * Tile::width;
  constexpr int rows_at_once = threads / part, lines_at_once = threads * 4 / Tile::width;
  const int k_of_a = threadIdx.x % part, row = threadIdx.x / part;
  const int k_of_b = threadIdx.x / (Tile::width / 4), column = threadIdx.x % (Tile::width / 4) * 4;
  const float* from_a = a + (top + row) * depth + k_of_a;
  const float* from_b = b + std::size_t(k_of_b) * columns + left + column;
  const auto copy = [&](Slices<Tile>& to) {
#pragma unroll
    for (int k = 0; k < slice; k += part)
#pragma unroll
      for (int i = 0; i < Tile::height; i += rows_at_once)
        device::copy_async<4>(&to.a[k_of_a + k][row + i], from_a + i * depth + k);
#pragma unroll
    for (int k = 0; k < slice; k += lines_at_once) device::copy_async_16(&to.b[k_of_b + k][column], from_b + k * columns);
    device::commit_copies();
    from_a += slice, from_b += slice * columns;
  };
  float sums[Tile::rows][Tile::columns] = {};
  copy(slices[0]);
#pragma unroll 1
  for (int first = 0; first < depth; first += 2 * slice) {
#pragma unroll
    for (int stage = 0; stage < 2; ++stage) {  // whose addresses are constants then
      device::wait_copies<0>();
      __syncthreads();  // this slice is here for all threads, and nobody reads the other one any more
      if (stage == 0 || first + 2 * slice < depth) copy(slices[stage ^ 1]);
      multiply<Tile, operands_reused>(slices[stage], sums);
    }
  }
  store<Tile, operands_reused>(c, sums);
}

class MicroTilingMatmul final : public Workload {
 public:
  explicit MicroTilingMatmul(Setup& setup)
      : rows_{setup.size("m")},
        outputs_{setup.size("outputs")},
        a_{setup.input<float>(rows_ * depth, uniform(-1, 1), {.name = "A"})},
        b_{setup.input<float>(std::size_t{depth} * columns, uniform(-1, 1), {.name = "B"})},
        c_{setup.output<float>(rows_ * columns, {.name = "C"})},
        cublas_{setup, CUBLAS_PEDANTIC_MATH},
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
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant != "chosen_outputs") return;
    const double tile_rows = outputs_ == 32 ? 8 : std::sqrt(static_cast<double>(outputs_));
    const double tile_columns = static_cast<double>(outputs_) / tile_rows;
    metrics.report("fmas_per_shared_byte", tile_rows * tile_columns / (sizeof(float) * (tile_rows + tile_columns)), "FMA/byte",
                   Metrics::Better::higher);
  }

  void one_output(Launch& launch) { launch(one_output_kernel, {grid(square, square), dim3{square, square}}, a_, b_, c_); }
  void column_of_8(Launch& launch) { launch(column_of_8_kernel, {grid(stacked, stacked), stack_threads}, a_, b_, c_); }
  template <int tile_rows, int tile_columns>
  void rectangle(Launch& launch) {
    using Tile = Rectangle<tile_rows, tile_columns>;
    launch(register_tile_kernel<Tile>, {grid(Tile::height, Tile::width), threads}, a_, b_, c_);
  }
  template <class Tile, bool operands_reused = false>
  void async_copies(Launch& launch) {
    launch(async_copy_kernel<Tile, operands_reused>, {grid(Tile::height, Tile::width), threads}, a_, b_, c_);
  }
  void chosen_outputs(Launch& launch) {
    switch (outputs_) {
      case 1: return rectangle<1, 1>(launch);
      case 4: return rectangle<2, 2>(launch);
      case 16: return rectangle<4, 4>(launch);
      case 32: return rectangle<8, 4>(launch);
      case 64: return rectangle<8, 8>(launch);
      default: throw Unsupported{"threads are compiled for 1, 4, 16, 32 and 64 outputs"};
    }
  }
  void cublas(Launch& launch) {
    cublas_->gemm(launch.stream, rows_, columns, depth, a_, b_, c_, CUDA_R_32F, CUBLAS_COMPUTE_32F_PEDANTIC);
  }
  void tune(Launch& launch) { lt_.tune(launch, a_, b_, c_); }
  void cublaslt_tuned(Launch& launch) { lt_.run_tuned(launch, a_, b_, c_); }

 private:
  dim3 grid(unsigned height, unsigned width) const { return {columns / width, static_cast<unsigned>(rows_) / height}; }

  std::size_t rows_, outputs_;  // outputs: of a thread of chosen_outputs
  Input<float> a_, b_;
  Output<float> c_;
  Opened<Cublas> cublas_;
  LibraryMatmul lt_;
};

}  // namespace

extern constinit const Pair micro_tiling_matmul{
    .teaches =
        "one output a thread costs two reads of shared memory for each FMA; a register tile of 8 x 8 makes 64 FMAs of 16 values",
    .lesson = "register_8x8",
    .make = make<MicroTilingMatmul>,
    .baseline = {.name = "one_output", .run = call<&MicroTilingMatmul::one_output>},
    .optimized = variants({{.name = "column_of_8",
                            .run = call<&MicroTilingMatmul::column_of_8>,
                            .same_bits_as = "one_output",
                            .kernels = {.local_bytes = 0}},
                           {.name = "register_8x8",
                            .run = call<&MicroTilingMatmul::rectangle<8, 8>>,
                            .same_bits_as = "one_output",
                            .kernels = {.registers = 128, .local_bytes = 0}},
                           {.name = "register_8x8_async",
                            .run = call<&MicroTilingMatmul::async_copies<Rectangle<8, 8>>>,
                            .same_bits_as = "one_output",
                            .kernels = {.registers = 128, .local_bytes = 0}},
                           {.name = "warp_tiled",
                            .run = call<&MicroTilingMatmul::async_copies<WarpTile>>,
                            .same_bits_as = "one_output",
                            .kernels = {.registers = 128, .local_bytes = 0}},
                           {.name = "operand_reuse",
                            .run = call<&MicroTilingMatmul::async_copies<WarpTile, true>>,
                            .same_bits_as = "one_output",
                            .kernels = {.registers = 128, .local_bytes = 0}}}),
    // The kernel of register_8x8 with as many outputs a thread as the size says.
    .controls = variants({{.name = "chosen_outputs", .run = call<&MicroTilingMatmul::chosen_outputs>}}),
    .libraries = variants({{.name = "cublas", .run = call<&MicroTilingMatmul::cublas>, .needs = {.libraries = {Library::cublas}}},
                           {.name = "cublaslt_tuned",
                            .run = call<&MicroTilingMatmul::cublaslt_tuned>,
                            .prepare = call<&MicroTilingMatmul::tune>,
                            .needs = {.libraries = {Library::cublaslt}}}}),
    .bound = Bound::compute,
    // Sums of 2048 products err by 3e-7; operands rounded to TF32 would by 3e-4.
    .tolerance = within(1e-6),
    .sizes = sizes({{.name = "m", .full = 4096, .multiple = 128}, {.name = "outputs", .full = 16, .most = 64, .scales = false}}),
    .sweep = cases({{"outputs_1", "outputs=1"},
                    {"outputs_4", "outputs=4"},
                    {"outputs_16", "outputs=16"},
                    {"outputs_32", "outputs=32"},
                    {"outputs_64", "outputs=64"}}),
    .edges = cases({{"one_row_of_tiles", "m=128"}, {"odd_number_of_tiles", "m=640"}}),
};

}  // namespace aisp::ch09
