// SPDX-License-Identifier: Apache-2.0
// Transposing a matrix: rows of the input become columns of the output, so one side of the copy must stride. In global memory a
// strided access touches a sector of 32 bytes for every element of 4, in warp after warp; in shared memory a stride costs nothing
// once the tile's layout avoids bank conflicts. With 16-byte accesses on both sides the transpose runs like a copy.
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

namespace aisp::ch07 {
namespace {

constexpr int columns = 16384;
constexpr int small_tile = 32, small_rows = 8;  // a block of 32 x 8 threads moves a tile of 32 x 32
constexpr int wide_tile = 64, quads = wide_tile / 4;

// A warp reads 32 neighbours of a row and writes them to 32 different rows of the output.
__global__ void strided_writes_kernel(const float* in, float* out, int rows) {
  const int x = blockIdx.x * small_tile + threadIdx.x;
  const int y = blockIdx.y * small_tile + threadIdx.y;
  for (int k = 0; k < small_tile; k += small_rows)
    out[static_cast<std::size_t>(x) * rows + y + k] = in[static_cast<std::size_t>(y + k) * columns + x];
}

// The stride moves into shared memory: a column of the tile is read at a stride of 33 words, that is from 32 different banks.
__global__ void tiled_padded_kernel(const float* in, float* out, int rows) {
  __shared__ float tile[small_tile][small_tile + 1];
  const int left = blockIdx.x * small_tile, top = blockIdx.y * small_tile;
  for (int k = 0; k < small_tile; k += small_rows)
    tile[threadIdx.y + k][threadIdx.x] = in[static_cast<std::size_t>(top + threadIdx.y + k) * columns + left + threadIdx.x];
  __syncthreads();
  for (int k = 0; k < small_tile; k += small_rows)
    out[static_cast<std::size_t>(left + threadIdx.y + k) * rows + top + threadIdx.x] = tile[threadIdx.x][threadIdx.y + k];
}

// Each thread moves 4 x 4 elements: four 16-byte loads, transposed by naming, four 16-byte stores. Group g of four elements of
// tile row r lies at g ^ (r / 4): the eight threads that share a shared-memory cycle differ in r / 4 when they write and in g
// when they read, so they always reach eight different groups of four banks. Blocks go down the columns of tiles: the blocks in
// flight then write long runs of a few output rows. Along the rows of tiles the writes, which memory likes less than reads to be
// scattered, would be spread over all rows of the output.
__global__ __launch_bounds__(quads* quads) void tiled_vec16_kernel(const float* in, float* out, int rows) {
  __shared__ float4 tile[wide_tile][quads];
  const int tile_rows = rows / wide_tile;
  const int left = static_cast<int>(blockIdx.x) / tile_rows * wide_tile,
            top = static_cast<int>(blockIdx.x) % tile_rows * wide_tile;
  const int tx = threadIdx.x % quads, ty = threadIdx.x / quads;

  const float* from = in + static_cast<std::size_t>(top + 4 * ty) * columns + left + 4 * tx;
  float4 row[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) row[k] = *reinterpret_cast<const float4*>(from + k * columns);
  tile[4 * tx + 0][ty ^ tx] = make_float4(row[0].x, row[1].x, row[2].x, row[3].x);
  tile[4 * tx + 1][ty ^ tx] = make_float4(row[0].y, row[1].y, row[2].y, row[3].y);
  tile[4 * tx + 2][ty ^ tx] = make_float4(row[0].z, row[1].z, row[2].z, row[3].z);
  tile[4 * tx + 3][ty ^ tx] = make_float4(row[0].w, row[1].w, row[2].w, row[3].w);
  __syncthreads();

  float* to = out + static_cast<std::size_t>(left + 4 * ty) * rows + top + 4 * tx;
#pragma unroll
  for (int k = 0; k < 4; ++k) *reinterpret_cast<float4*>(to + static_cast<std::size_t>(k) * rows) = tile[4 * ty + k][tx ^ ty];
}

class Transpose final : public Workload {
 public:
  explicit Transpose(Setup& setup)
      : rows_{setup.scaled(16384, wide_tile)},
        in_{setup.input<float>(rows_ * columns, uniform(-1, 1), {.name = "matrix"})},
        out_{setup.output<float>(rows_ * columns, {.name = "transposed"})},
        cublas_{setup} {}

  Cost cost() const override { return {.bytes = static_cast<double>(in_.bytes() + out_.bytes())}; }
  double expected(std::size_t index) const override { return in_.host(index % rows_ * columns + index / rows_); }

  void strided_writes(Launch& launch) {
    strided_writes_kernel<<<small_grid(), small_block, 0, launch.stream>>>(in_, out_, static_cast<int>(rows_));
    check(cudaGetLastError());
  }
  void tiled_padded(Launch& launch) {
    tiled_padded_kernel<<<small_grid(), small_block, 0, launch.stream>>>(in_, out_, static_cast<int>(rows_));
    check(cudaGetLastError());
  }
  void tiled_vec16(Launch& launch) {
    const auto tiles = static_cast<unsigned>(rows_ / wide_tile * (columns / wide_tile));
    tiled_vec16_kernel<<<tiles, quads * quads, 0, launch.stream>>>(in_, out_, static_cast<int>(rows_));
    check(cudaGetLastError());
  }
  // C = A^T, in cuBLAS's column-major order; B counts zero times.
  void cublas_geam(Launch& launch) {
    const float one = 1, zero = 0;
    const auto rows = static_cast<int>(rows_);
    const auto geam = Cublas::function<decltype(cublasSgeam)>("cublasSgeam");
    cublas_->use(launch.stream);
    check(geam(cublas_->handle(), CUBLAS_OP_T, CUBLAS_OP_N, rows, columns, &one, in_, columns, &zero, out_, rows, out_, rows));
  }

 private:
  static constexpr dim3 small_block{small_tile, small_rows};
  dim3 small_grid() const { return {columns / small_tile, static_cast<unsigned>(rows_ / small_tile)}; }

  std::size_t rows_;
  Input<float> in_;
  Output<float> out_;
  Opened<Cublas> cublas_;
};

}  // namespace

extern constinit const Pair transpose{
    .teaches =
        "one side of a transpose must stride: in global memory it costs a sector per element, in a shared-memory tile nothing",
    .lesson = "tiled_padded",
    .make = make<Transpose>,
    .baseline = {.name = "strided_writes", .run = call<&Transpose::strided_writes>},
    .optimized = variants({{.name = "tiled_padded", .run = call<&Transpose::tiled_padded>},
                           {.name = "tiled_vec16", .run = call<&Transpose::tiled_vec16>}}),
    .libraries =
        variants({{.name = "cublas_geam", .run = call<&Transpose::cublas_geam>, .needs = {.libraries = {Library::cublas}}}}),
    .bound = Bound::memory,
    .tolerance = exact,
};

}  // namespace aisp::ch07
