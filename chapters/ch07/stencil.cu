// SPDX-License-Identifier: Apache-2.0
// A wave operator: every cell of a volume gets a weighted sum of 25 cells, a star of four neighbours on each side in x, y and z.
// The caches keep memory quiet, but 25 loads a cell are too many for the load unit. Threads that march along z have the column in
// registers; with four cells a thread, each load brings four values and its neighbours in x serve each other. A plane in shared
// memory instead gives all neighbours in x and y, at the price of a barrier a plane.
#include <aisp/device/vector.cuh>
#include <aisp/pair.hpp>

#include <utility>

namespace aisp::ch07 {
namespace {

constexpr int side = 512;  // cells of the volume along x and y
constexpr int margin = 8;  // cells before and after a row: as many as the largest star needs, and rows stay aligned
constexpr int pitch = side + 2 * margin, warp = 32;
constexpr int narrow_rows = 8, wide_rows = 16;  // of threads, in a block without and with a shared plane
constexpr int chunk = 128;                      // planes that a thread marches through
constexpr int ahead = 2;                        // planes that are requested before they are needed

template <int radius>
constexpr int plane = pitch*(side + 2 * radius);

template <int radius>
struct Weights {
  float at[radius + 1];
};

// The sum in one order for all kernels; x(k), y(k) and z(k) are the neighbours at distance k.
template <int radius, class X, class Y, class Z>
__device__ float star(const Weights<radius>& weights, float centre, X x, Y y, Z z) {
  float sum = weights.at[0] * centre;
#pragma unroll
  for (int k = 1; k <= radius; ++k) sum = fmaf(weights.at[k], ((x(-k) + x(k)) + (y(-k) + y(k))) + (z(-k) + z(k)), sum);
  return sum;
}

template <int radius>
__device__ const float* cell_at(const float* in, int x, int y, int z) {
  return in + (z + radius) * plane<radius> + (y + radius) * pitch + x + margin;
}
__device__ float* result_at(float* out, int x, int y, int z) { return out + (z * side + y) * side + x; }

template <int radius>
__global__ __launch_bounds__(warp* narrow_rows) void cell_per_thread_kernel(const float* in, float* out,
                                                                            Weights<radius> weights) {
  const int x = blockIdx.x * warp + threadIdx.x, y = blockIdx.y * narrow_rows + threadIdx.y, z = blockIdx.z;
  const float* const cell = cell_at<radius>(in, x, y, z);
  *result_at(out, x, y, z) = star<radius>(
      weights, *cell, [&](int k) { return cell[k]; }, [&](int k) { return cell[k * pitch]; },
      [&](int k) { return cell[k * plane<radius>]; });
}

// The part of its column that a thread holds while it marches along z; T is one cell or several neighbours.
template <int radius, class T>
struct Column {
  T at[2 * radius + 1 + ahead];

  __device__ void begin(const float* cell) {
#pragma unroll
    for (int j = 0; j < 2 * radius + ahead; ++j) at[j] = *reinterpret_cast<const T*>(cell + (j - radius) * plane<radius>);
  }
  // Requests what is needed `ahead` planes from now; after the last plane of the chunk nothing is.
  __device__ void request(const float* cell, int planes_left) {
    if (planes_left > ahead) at[2 * radius + ahead] = *reinterpret_cast<const T*>(cell + (radius + ahead) * plane<radius>);
  }
  __device__ void move_on() {
#pragma unroll
    for (int j = 0; j < 2 * radius + ahead; ++j) at[j] = at[j + 1];
  }
};

template <int radius>
__global__ __launch_bounds__(warp* narrow_rows) void z_column_kernel(const float* in, float* out, Weights<radius> weights) {
  const int x = blockIdx.x * warp + threadIdx.x, y = blockIdx.y * narrow_rows + threadIdx.y, z = blockIdx.z * chunk;
  const float* cell = cell_at<radius>(in, x, y, z);
  float* result = result_at(out, x, y, z);
  Column<radius, float> column;
  column.begin(cell);
#pragma unroll 4
  for (int left = chunk; left > 0; --left, cell += plane<radius>, result += side * side) {
    column.request(cell, left);
    *result = star<radius>(
        weights, column.at[radius], [&](int k) { return cell[k]; }, [&](int k) { return cell[k * pitch]; },
        [&](int k) { return column.at[radius + k]; });
    column.move_on();
  }
}

// Four cells a thread. A star of four on each side needs one unit of four at the left and one at the right.
template <int radius>
__global__ __launch_bounds__(warp* narrow_rows, radius <= 4 ? 2 : 1) void z_column_vec4_kernel(const float* in, float* out,
                                                                                               Weights<radius> weights) {
  constexpr int cells = 4, beside = (radius + cells - 1) / cells;
  using Cells = device::Vector<float, cells>;
  const int x = (blockIdx.x * warp + threadIdx.x) * cells, y = blockIdx.y * narrow_rows + threadIdx.y, z = blockIdx.z * chunk;
  const float* cell = cell_at<radius>(in, x, y, z);
  float* result = result_at(out, x, y, z);
  Column<radius, Cells> column;
  column.begin(cell);
#pragma unroll 4
  for (int left = chunk; left > 0; --left, cell += plane<radius>, result += side * side) {
    column.request(cell, left);
    Cells row[2 * beside + 1], rows[2 * radius + 1];
#pragma unroll
    for (int k = -beside; k <= beside; ++k)
      row[beside + k] = k == 0 ? column.at[radius] : *reinterpret_cast<const Cells*>(cell + k * cells);
#pragma unroll
    for (int k = -radius; k <= radius; ++k)
      if (k != 0) rows[radius + k] = *reinterpret_cast<const Cells*>(cell + k * pitch);
    Cells sums;
#pragma unroll
    for (int c = 0; c < cells; ++c)
      sums[c] = star<radius>(
          weights, column.at[radius][c],
          [&](int k) { return row[(beside * cells + c + k) / cells][(beside * cells + c + k) % cells]; },
          [&](int k) { return rows[radius + k][c]; }, [&](int k) { return column.at[radius + k][c]; });
    *reinterpret_cast<Cells*>(result) = sums;
    column.move_on();
  }
}

// The plane of a block's cells and what surrounds them, but for the corners. A thread has `cells` neighbours, and the plane as
// many units of so many.
template <int radius, int cells>
struct Tile {
  using Cells = device::Vector<float, cells>;
  static constexpr int beside = (radius + cells - 1) / cells;  // units at the left and at the right
  static constexpr int above = 2 * radius * warp, around = above + wide_rows * 2 * beside;
  static constexpr int threads = warp * wide_rows, turns = (around + threads - 1) / threads;
  alignas(16) float at[wide_rows + 2 * radius][(warp + 2 * beside) * cells];

  // Calls use(turn, row, column) for the units around the block's cells that are this thread's to fetch.
  template <class Use>
  static __device__ void for_surroundings(Use use) {
#pragma unroll
    for (int turn = 0; turn < turns; ++turn) {
      const int i = static_cast<int>(threadIdx.y * warp + threadIdx.x) + turn * threads, j = i - above;
      if (i < above) use(turn, i / warp < radius ? i / warp : i / warp + wide_rows, beside + i % warp);
      else if (i < around) use(turn, radius + j / (2 * beside), j % (2 * beside) + (j % (2 * beside) < beside ? 0 : warp));
    }
  }
  // `corner` is the cell of the block's first thread.
  static __device__ void fetch(const float* corner, Cells (&fetched)[turns]) {
    for_surroundings([&](int turn, int row, int column) {
      fetched[turn] = *reinterpret_cast<const Cells*>(corner + (row - radius) * pitch + (column - beside) * cells);
    });
  }
  __device__ void keep(int row, int column, const Cells& unit) { *reinterpret_cast<Cells*>(&at[row][column * cells]) = unit; }
};

// There are two planes: one is written while slower warps still read the other, so one barrier a plane is enough.
template <int radius, int cells, bool surroundings_ahead>
__global__ __launch_bounds__(warp* wide_rows) void z_march_kernel(const float* in, float* out, Weights<radius> weights) {
  using Plane = Tile<radius, cells>;
  using Cells = typename Plane::Cells;
  __shared__ Plane planes[2];
  const int left_x = blockIdx.x * warp * cells, top_y = blockIdx.y * wide_rows, z = blockIdx.z * chunk;
  const int tx = threadIdx.x, ty = threadIdx.y, x = (Plane::beside + tx) * cells, y = radius + ty;  // x and y: in the tile
  const float* corner = cell_at<radius>(in, left_x, top_y, z);
  const float* cell = corner + ty * pitch + tx * cells;
  float* result = result_at(out, left_x + tx * cells, top_y + ty, z);
  Column<radius, Cells> column;
  Cells fetched[Plane::turns];
  column.begin(cell);
  if constexpr (surroundings_ahead) Plane::fetch(corner, fetched);
#pragma unroll 2
  for (int left = chunk; left > 0; --left, result += side * side) {
    Plane& tile = planes[left % 2];
    column.request(cell, left);
    if constexpr (!surroundings_ahead) Plane::fetch(corner, fetched);
    tile.keep(y, Plane::beside + tx, column.at[radius]);
    Plane::for_surroundings([&](int turn, int row, int unit) { tile.keep(row, unit, fetched[turn]); });
    __syncthreads();
    cell += plane<radius>, corner += plane<radius>;
    if constexpr (surroundings_ahead)
      if (left > 1) Plane::fetch(corner, fetched);
    Cells sums;
#pragma unroll
    for (int c = 0; c < cells; ++c)
      sums[c] = star<radius>(
          weights, column.at[radius][c], [&](int k) { return tile.at[y][x + c + k]; },
          [&](int k) { return tile.at[y + k][x + c]; }, [&](int k) { return column.at[radius + k][c]; });
    *reinterpret_cast<Cells*>(result) = sums;
    column.move_on();
  }
}

class Stencil final : public Workload {
 public:
  explicit Stencil(Setup& setup)
      : radius_{setup.size("radius")},
        planes_{setup.scaled(512, chunk)},
        in_{setup.input<float>(pitch * (side + 2 * radius_) * (planes_ + 2 * radius_), uniform(-1, 1), {.name = "volume"})},
        out_{setup.output<float>(planes_ * side * side, {.name = "operator of the volume"})} {}

  // Only the six faces of the cells around the volume are needed.
  Cost cost() const override {
    const double faces = 2.0 * static_cast<double>(radius_) * (side * side + 2.0 * side * static_cast<double>(planes_));
    const auto cells = static_cast<double>(out_.size());
    return {.flops = cells * static_cast<double>(7 * radius_ + 1), .bytes = sizeof(float) * (2 * cells + faces)};
  }
  double expected(std::size_t i) const override {
    const std::size_t row = pitch, above = pitch * (side + 2 * radius_);
    const std::size_t centre = (i / (side * side) + radius_) * above + (i / side % side + radius_) * row + i % side + margin;
    double sum = weight(0) * in_.host(centre);
    for (std::size_t k = 1; k <= radius_; ++k)
      for (const std::size_t distance : {k, k * row, k * above})
        sum += weight(k) * (in_.host(centre - distance) + in_.host(centre + distance));
    return sum;
  }

  void cell_per_thread(Launch& launch) {
    with_radius(
        [&]<int radius>() { launch(cell_per_thread_kernel<radius>, grid(narrow_rows, 1, 1), in_, out_, weights<radius>()); });
  }
  void z_column(Launch& launch) {
    with_radius(
        [&]<int radius>() { launch(z_column_kernel<radius>, grid(narrow_rows, 1, chunk), in_, out_, weights<radius>()); });
  }
  void z_column_vec4(Launch& launch) {
    with_radius(
        [&]<int radius>() { launch(z_column_vec4_kernel<radius>, grid(narrow_rows, 4, chunk), in_, out_, weights<radius>()); });
  }
  template <int cells, bool surroundings_ahead>
  void z_march(Launch& launch) {
    with_radius([&]<int radius>() {
      launch(z_march_kernel<radius, cells, surroundings_ahead>, grid(wide_rows, cells, chunk), in_, out_, weights<radius>());
    });
  }

 private:
  // Returns a weight of a second derivative: they alternate and fall with the square of the distance; a constant volume has none.
  float weight(std::size_t k) const {
    if (k > 0) return (k % 2 == 1 ? 2.0f : -2.0f) / static_cast<float>(k * k);
    float sum = 0;
    for (std::size_t distance = 1; distance <= radius_; ++distance) sum += weight(distance);
    return -6 * sum;
  }
  template <int radius>
  Weights<radius> weights() const {
    Weights<radius> result;
    for (int k = 0; k <= radius; ++k) result.at[k] = weight(static_cast<std::size_t>(k));
    return result;
  }
  template <class Run>
  void with_radius(Run run) {
    const auto is_one_of = [&]<int... radii>(std::integer_sequence<int, radii...>) {
      return ((radius_ == radii && (run.template operator()<radii>(), true)) || ...);
    };
    if (!is_one_of(std::integer_sequence<int, 1, 2, 3, 4, 6, 8>{}))
      throw Unsupported{"kernels are compiled for radii of 1, 2, 3, 4, 6 and 8"};
  }
  // Blocks of `rows` rows of 32 threads, each with so many cells along x and z.
  Grid grid(unsigned rows, unsigned cells_x, unsigned cells_z) const {
    return {.blocks = dim3{side / (warp * cells_x), side / rows, static_cast<unsigned>(planes_) / cells_z},
            .threads = dim3{warp, rows}};
  }

  std::size_t radius_, planes_;
  Input<float> in_;
  Output<float> out_;
};

}  // namespace

extern constinit const Pair stencil{
    .teaches = "a star of 25 points reads each value 25 times; marching along z keeps the column in registers",
    .lesson = "z_column",
    .make = make<Stencil>,
    .baseline = {.name = "cell_per_thread", .run = call<&Stencil::cell_per_thread>},
    .optimized = variants({{.name = "z_column", .run = call<&Stencil::z_column>},
                           {.name = "z_column_vec4", .run = call<&Stencil::z_column_vec4>},
                           {.name = "z_march", .run = call<&Stencil::z_march<1, false>>, .gains_over = "z_column"},
                           {.name = "z_march_ahead", .run = call<&Stencil::z_march<1, true>>},
                           {.name = "z_march_vec", .run = call<&Stencil::z_march<2, true>>}}),
    .bound = Bound::memory,
    .tolerance = reduction_of(25),
    .sizes = sizes({{.name = "radius", .full = 4, .most = margin, .scales = false}}),
    .sweep = cases({{"radius_1", "radius=1"},
                    {"radius_2", "radius=2"},
                    {"radius_3", "radius=3"},
                    {"radius_4", "radius=4"},
                    {"radius_6", "radius=6"},
                    {"radius_8", "radius=8"}}),
    .edges = cases({{"radius_1", "radius=1"}}),
};

}  // namespace aisp::ch07
