// SPDX-License-Identifier: Apache-2.0
// The Sobel magnitude of 16384 x 16384 pixels, with zeros around the image. Each tile needs a border of one pixel, and loading it
// takes every thread a division, a remainder and four comparisons for each element, as much work as the filter itself. A tensor
// map knows the shape: one thread asks for a box, the hardware makes the addresses and fills in the zeros.
#include <aisp/device/fence.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/pair.hpp>
#include <aisp/tensor_map.hpp>

#include <algorithm>
#include <cmath>

namespace aisp::ch07 {
namespace {

constexpr int threads = 256;
constexpr int columns = 16384;
constexpr int stages = 4;  // boxes in shared memory: one in work, three on their way

template <int width, int height>
struct Shape {
  static constexpr int tile_columns = width, tile_rows = height;
  // TMA takes whole 16 bytes and begins at a multiple of them: four columns on either side, of which one is needed.
  static constexpr int margin = 4, box_columns = tile_columns + 2 * margin, box_rows = tile_rows + 2;
  static constexpr int box_bytes = box_columns * box_rows * 4, slot_bytes = (box_bytes + 127) / 128 * 128;
  static constexpr int tile_bytes = tile_columns * tile_rows * 4;
  static constexpr int rows_each = tile_rows * tile_columns / threads;  // of a thread, one below the other
  static constexpr int ring_bytes = stages * slot_bytes, ring_store_bytes = ring_bytes + 2 * tile_bytes;

  // Calls `store(column, row, value)` for the thread's pixels. The box begins one pixel above the tile and `margin` left of it.
  template <class Store>
  static __device__ void sobel(const float* box, Store store) {
    const int column = threadIdx.x % tile_columns, first = threadIdx.x / tile_columns * rows_each;
    const float* at = box + first * box_columns + column + margin - 1;
    float difference[3], sum[3];  // along x, of the rows above, at and below
    const auto take = [&](int k) {
      difference[k % 3] = at[k * box_columns + 2] - at[k * box_columns];
      sum[k % 3] = fmaf(2, at[k * box_columns + 1], at[k * box_columns] + at[k * box_columns + 2]);
    };
    take(0);
    take(1);
#pragma unroll
    for (int k = 0; k < rows_each; ++k) {
      take(k + 2);
      const float y = sum[(k + 2) % 3] - sum[k % 3];
      const float x = fmaf(2, difference[(k + 1) % 3], difference[k % 3] + difference[(k + 2) % 3]);
      store(column, first + k, sqrtf(fmaf(x, x, y * y)));
    }
  }
  static __device__ void sobel_to(float* out, int left, int top, const float* box) {
    float* to = out + static_cast<std::size_t>(top) * columns + left;
    sobel(box, [&](int column, int row, float value) { to[row * columns + column] = value; });
  }
};

__device__ float pixel_or_zero(const float* in, int x, int y, int rows) {
  return x >= 0 && x < columns && y >= 0 && y < rows ? in[static_cast<std::size_t>(y) * columns + x] : 0;
}

template <class S>
__global__ __launch_bounds__(threads) void element_by_element_kernel(const float* in, float* out, int rows) {
  __shared__ float box[S::box_rows][S::box_columns];
  const int left = blockIdx.x * S::tile_columns, top = blockIdx.y * S::tile_rows;
  constexpr int used = S::tile_columns + 2;
  for (int i = threadIdx.x; i < used * S::box_rows; i += threads)
    box[i / used][i % used + S::margin - 1] = pixel_or_zero(in, left - 1 + i % used, top - 1 + i / used, rows);
  __syncthreads();
  S::sobel_to(out, left, top, box[0]);
}

// A thread takes four neighbours of the tile's own columns at a time, all of them before it stores the first, and then one pixel
// of the two columns beside the tile.
template <class S>
__global__ __launch_bounds__(threads) void row_vectors_kernel(const float* in, float* out, int rows) {
  __shared__ __align__(16) float box[S::box_rows][S::box_columns];
  constexpr int vectors = S::tile_columns / 4, each = (vectors * S::box_rows + threads - 1) / threads;
  static_assert(2 * S::box_rows <= threads);
  const int left = blockIdx.x * S::tile_columns, top = blockIdx.y * S::tile_rows;
  const auto y = [](int k) { return static_cast<int>(threadIdx.x + k * threads) / vectors; };
  const int x = threadIdx.x % vectors * 4, side = threadIdx.x % 2 * (S::tile_columns + 1) - 1, side_y = threadIdx.x / 2;
  float4 loaded[each];
#pragma unroll
  for (int k = 0; k < each; ++k) {
    const int from = top + y(k) - 1;
    const bool inside = y(k) < S::box_rows && from >= 0 && from < rows;
    loaded[k] = inside ? *reinterpret_cast<const float4*>(in + static_cast<std::size_t>(from) * columns + left + x) : float4{};
  }
  if (side_y < S::box_rows) box[side_y][S::margin + side] = pixel_or_zero(in, left + side, top - 1 + side_y, rows);
#pragma unroll
  for (int k = 0; k < each; ++k)
    if (y(k) < S::box_rows) *reinterpret_cast<float4*>(&box[y(k)][S::margin + x]) = loaded[k];
  __syncthreads();
  S::sobel_to(out, left, top, box[0]);
}

template <class S>
__device__ void load_box(float* box, const CUtensorMap* map, int left, int top, std::uint64_t* filled) {
  device::barrier_arrive_expect(filled, S::box_bytes);
  device::tensor_load_2d(box, map, left - S::margin, top - 1, filled);
}

template <class S>
__global__ __launch_bounds__(threads) void tma_tile_kernel(const __grid_constant__ CUtensorMap map, float* out) {
  __shared__ __align__(128) float box[S::box_rows * S::box_columns];
  __shared__ std::uint64_t filled;
  const int left = blockIdx.x * S::tile_columns, top = blockIdx.y * S::tile_rows;
  if (threadIdx.x == 0) {
    device::barrier_init(&filled, 1);
    device::fence_barrier_init();
    load_box<S>(box, &map, left, top, &filled);
  }
  __syncthreads();  // the barrier is there for all
  device::barrier_wait(&filled, 0);
  S::sobel_to(out, left, top, box);
}

// Block b has the tiles b, b + gridDim.x ...: the blocks in flight share borders, of which L2 keeps some. With `tensor_store` a
// tile goes to shared memory and leaves as a box, too, while the next one is computed into the other of two buffers.
template <class S, bool tensor_store>
__global__ __launch_bounds__(threads) void tma_tile_ring_kernel(const __grid_constant__ CUtensorMap map,
                                                                const __grid_constant__ CUtensorMap out_map, float* out,
                                                                int tiles) {
  extern __shared__ __align__(128) unsigned char ring[];
  __shared__ std::uint64_t filled[stages];
  constexpr int across = columns / S::tile_columns;
  const auto slot = [&](int k) { return reinterpret_cast<float*>(ring + k * S::slot_bytes); };
  const auto load = [&](int tile, int k) {
    if (threadIdx.x == 0 && tile < tiles)
      load_box<S>(slot(k), &map, tile % across * S::tile_columns, tile / across * S::tile_rows, &filled[k]);
  };
  if (threadIdx.x == 0) {
    for (auto& barrier : filled) device::barrier_init(&barrier, 1);
    device::fence_barrier_init();
  }
  __syncthreads();
  for (int k = 0; k < stages; ++k) load(blockIdx.x + k * gridDim.x, k);
  for (int tile = blockIdx.x, turn = 0; tile < tiles; tile += gridDim.x, ++turn) {
    const int left = tile % across * S::tile_columns, top = tile / across * S::tile_rows;
    device::barrier_wait(&filled[turn % stages], turn / stages % 2);
    if constexpr (tensor_store) {
      auto* leaving = reinterpret_cast<float*>(ring + S::ring_bytes + turn % 2 * S::tile_bytes);
      S::sobel(slot(turn % stages), [&](int column, int row, float value) { leaving[row * S::tile_columns + column] = value; });
      device::fence_proxy_async_shared();
      if (threadIdx.x == 0) device::wait_stores_read<0>();  // the other buffer, for the next tile
      __syncthreads();
      if (threadIdx.x == 0) device::tensor_store_2d(&out_map, left, top, leaving);
      if (threadIdx.x == 0) device::commit_stores();
    } else {
      S::sobel_to(out, left, top, slot(turn % stages));
      __syncthreads();
    }
    load(tile + stages * gridDim.x, turn % stages);
  }
  if (tensor_store && threadIdx.x == 0) device::wait_stores_read<0>();
}

class TmaBulkTensor2d final : public Workload {
 public:
  explicit TmaBulkTensor2d(Setup& setup)
      : tile_columns_{setup.size("tile_columns")},
        tile_rows_{setup.size("tile_rows")},
        rows_{setup.scaled(16384, 64)},
        in_{setup.input<float>(rows_ * columns, uniform(0, 1), {.name = "image"})},
        out_{setup.output<float>(rows_ * columns, {.name = "magnitudes"})} {}

  Cost cost() const override { return {.bytes = static_cast<double>(in_.bytes() + out_.bytes())}; }
  double expected(std::size_t i) const override {
    const auto x = static_cast<std::ptrdiff_t>(i % columns), y = static_cast<std::ptrdiff_t>(i / columns);
    const auto at = [&](int dx, int dy) {
      const std::ptrdiff_t column = x + dx, row = y + dy;
      if (column < 0 || column >= columns || row < 0 || row >= static_cast<std::ptrdiff_t>(rows_)) return 0.0;
      return in_.host(static_cast<std::size_t>(row * columns + column));
    };
    const double gx = at(1, -1) - at(-1, -1) + 2 * (at(1, 0) - at(-1, 0)) + at(1, 1) - at(-1, 1);
    const double gy = at(-1, 1) - at(-1, -1) + 2 * (at(0, 1) - at(0, -1)) + at(1, 1) - at(1, -1);
    return std::sqrt(gx * gx + gy * gy);
  }

  void element_by_element(Launch& launch) {
    with_shape([&]<class S>(S) { launch(element_by_element_kernel<S>, tiles<S>(), in_, out_, rows_); });
  }
  void row_vectors(Launch& launch) {
    with_shape([&]<class S>(S) { launch(row_vectors_kernel<S>, tiles<S>(), in_, out_, rows_); });
  }
  void tma_tile(Launch& launch) {
    with_shape([&]<class S>(S) { launch(tma_tile_kernel<S>, tiles<S>(), boxes<S>(), out_); });
  }
  void tma_tile_ring(Launch& launch) { ring<false>(launch); }
  void tma_tile_ring_store(Launch& launch) { ring<true>(launch); }

 private:
  template <class Use>
  void with_shape(Use use) const {
    const auto is = [&](std::size_t width, std::size_t height) { return tile_columns_ == width && tile_rows_ == height; };
    if (is(32, 16)) return use(Shape<32, 16>{});
    if (is(64, 16)) return use(Shape<64, 16>{});
    if (is(64, 32)) return use(Shape<64, 32>{});
    if (is(64, 64)) return use(Shape<64, 64>{});
    if (is(128, 32)) return use(Shape<128, 32>{});
    throw Unsupported{"tiles of 32 x 16, 64 x 16, 64 x 32, 64 x 64 and 128 x 32 are compiled"};
  }
  template <class S>
  Grid tiles() const {
    return {dim3{columns / S::tile_columns, static_cast<unsigned>(rows_) / S::tile_rows}, threads};
  }
  template <class S>
  CUtensorMap boxes() const {
    return matrix_map(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, sizeof(float), in_.get(), rows_, columns, S::box_rows, S::box_columns,
                      CU_TENSOR_MAP_SWIZZLE_NONE);
  }
  template <bool tensor_store>
  void ring(Launch& launch) {
    with_shape([&]<class S>(S) {
      constexpr std::size_t shared_bytes = tensor_store ? S::ring_store_bytes : S::ring_bytes;
      const auto kernel = tma_tile_ring_kernel<S, tensor_store>;
      int resident = 0;
      allow_shared_memory(kernel, shared_bytes);
      check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, shared_bytes));
      const auto count = static_cast<unsigned>(rows_ / S::tile_rows * (columns / S::tile_columns));
      const auto out_map = matrix_map(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, sizeof(float), out_.get(), rows_, columns, S::tile_rows,
                                      S::tile_columns, CU_TENSOR_MAP_SWIZZLE_NONE);
      const unsigned blocks = std::min(count, multiprocessors() * static_cast<unsigned>(resident));
      launch(kernel, {blocks, threads, shared_bytes}, boxes<S>(), out_map, out_, count);
    });
  }

  std::size_t tile_columns_, tile_rows_, rows_;
  Input<float> in_;
  Output<float> out_;
};

}  // namespace

extern constinit const Pair tma_bulk_tensor_2d{
    .teaches = "a tensor map knows the shape: one thread loads a box with its border, and the hardware fills zeros outside",
    .lesson = "tma_tile",
    .make = make<TmaBulkTensor2d>,
    .baseline = {.name = "element_by_element", .run = call<&TmaBulkTensor2d::element_by_element>},
    .optimized = variants({{.name = "row_vectors", .run = call<&TmaBulkTensor2d::row_vectors>},
                           {.name = "tma_tile", .run = call<&TmaBulkTensor2d::tma_tile>},
                           {.name = "tma_tile_ring", .run = call<&TmaBulkTensor2d::tma_tile_ring>},
                           {.name = "tma_tile_ring_store", .run = call<&TmaBulkTensor2d::tma_tile_ring_store>}}),
    .bound = Bound::memory,
    .tolerance = reduction_of(8),
    .needs = {.min_sm = 90},
    .sizes = sizes({{.name = "tile_columns", .full = 64, .multiple = 32, .most = 128, .scales = false},
                    {.name = "tile_rows", .full = 32, .multiple = 16, .most = 64, .scales = false}}),
    .sweep = cases({{"tile_32_16", "tile_columns=32,tile_rows=16"},
                    {"tile_64_16", "tile_columns=64,tile_rows=16"},
                    {"tile_64_32", "tile_columns=64,tile_rows=32"},
                    {"tile_64_64", "tile_columns=64,tile_rows=64"},
                    {"tile_128_32", "tile_columns=128,tile_rows=32"}}),
    .edges = cases({{"tile_columns_32", "tile_columns=32"}, {"tile_rows_16", "tile_rows=16"}}),
};

}  // namespace aisp::ch07
