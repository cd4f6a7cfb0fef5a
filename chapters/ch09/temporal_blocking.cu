// SPDX-License-Identifier: Apache-2.0
// Eight steps of a relaxation on a grid of 1 GiB: each cell becomes a weighted sum of itself and its four neighbours. A step has
// 6 FLOPs for 8 bytes and no more to give; eight steps on one reading have 48. A tile whose margin is as wide as the steps are
// many can take them on chip; the margin is computed twice. Rows that stream through registers leave a margin only at the sides.
#include <aisp/device/vector.cuh>
#include <aisp/pair.hpp>

#include <algorithm>
#include <vector>

namespace aisp::ch09 {
namespace {

constexpr float of_centre = 0.375f, of_neighbour = 0.15625f;  // they add up to one
constexpr int lanes = 32, cells = 4, warp_columns = lanes * cells;
constexpr int warps = 8, step_rows = 4;                                          // of the kernel of one step: rows of a thread
constexpr int tile_steps = 4, tile_rows = 72, rows_of_warp = tile_rows / warps;  // with the margin
constexpr int inner_columns = warp_columns - 2 * tile_steps, inner_rows = tile_rows - 2 * tile_steps;
constexpr std::size_t tile_bytes = sizeof(float) * tile_rows * warp_columns;
constexpr int stream_warps = 4, chunk = 256;  // rows that a warp streams through
constexpr int most_steps = 16;

using Cells = device::Vector<float, cells>;

struct GridSize {
  int rows, columns;
};

// Which of a thread's four cells are on the border of the grid, where values stay.
struct Border {
  bool row, left, right;
};
__device__ __forceinline__ Border border_at(const GridSize& grid, int row, int column) {
  return {row <= 0 || row >= grid.rows - 1, column == 0, column + cells == grid.columns};
}

__device__ __forceinline__ Cells step(const Cells& above, const Cells& centre, const Cells& below, float left, float right,
                                      const Border& border) {
  Cells result;
#pragma unroll
  for (int c = 0; c < cells; ++c) {
    const float before = c == 0 ? left : centre[c - 1], behind = c == cells - 1 ? right : centre[c + 1];
    result[c] = fmaf(of_neighbour, (before + behind) + (above[c] + below[c]), of_centre * centre[c]);
  }
  if (border.left) result[0] = centre[0];
  if (border.right) result[cells - 1] = centre[cells - 1];
  return border.row ? centre : result;
}
// The neighbours at the sides come from the lanes beside. What the outermost lanes make of it is not used.
__device__ __forceinline__ Cells step(const Cells& above, const Cells& centre, const Cells& below, const Border& border) {
  const float left = __shfl_up_sync(~0u, centre[cells - 1], 1), right = __shfl_down_sync(~0u, centre[0], 1);
  return step(above, centre, below, left, right, border);
}

__device__ __forceinline__ Cells load(const float* in, const GridSize& grid, int row, int column) {
  return *reinterpret_cast<const Cells*>(in + static_cast<std::size_t>(row) * grid.columns + column);
}
__device__ __forceinline__ Cells load_or_zero(const float* in, const GridSize& grid, int row, int column) {
  return row >= 0 && row < grid.rows && column >= 0 && column < grid.columns ? load(in, grid, row, column) : Cells{};
}
__device__ __forceinline__ void store(float* out, const GridSize& grid, int row, int column, const Cells& result) {
  *reinterpret_cast<Cells*>(out + static_cast<std::size_t>(row) * grid.columns + column) = result;
}

// A thread has four cells of four rows.
__global__ __launch_bounds__(lanes* warps) void one_step_kernel(const float* __restrict__ in, float* __restrict__ out,
                                                                GridSize grid) {
  const int column = static_cast<int>(blockIdx.x * lanes + threadIdx.x) * cells;
  const int first = static_cast<int>(blockIdx.y * warps + threadIdx.y) * step_rows;
  if (column >= grid.columns || first >= grid.rows) return;
  Cells at[step_rows + 2];
  float left[step_rows], right[step_rows];
#pragma unroll
  for (int r = 0; r < step_rows + 2; ++r) at[r] = load(in, grid, min(max(first + r - 1, 0), grid.rows - 1), column);
#pragma unroll
  for (int r = 0; r < step_rows; ++r) {
    const float* const row = in + static_cast<std::size_t>(min(first + r, grid.rows - 1)) * grid.columns;
    left[r] = row[max(column - 1, 0)];
    right[r] = row[min(column + cells, grid.columns - 1)];
  }
#pragma unroll
  for (int r = 0; r < step_rows; ++r)
    if (first + r < grid.rows)
      store(out, grid, first + r, column,
            step(at[r], at[r + 1], at[r + 2], left[r], right[r], border_at(grid, first + r, column)));
}

// A tile of 72 x 128 cells takes four steps, from one half of shared memory to the other; 64 x 120 of them are right in the end.
__global__ __launch_bounds__(lanes* warps) void tile_kernel(const float* __restrict__ in, float* __restrict__ out,
                                                            GridSize grid) {
  extern __shared__ Cells shared[];
  Cells(*const tiles)[tile_rows][lanes] = reinterpret_cast<Cells(*)[tile_rows][lanes]>(shared);
  const int lane = threadIdx.x, first = threadIdx.y * rows_of_warp;
  const int column = static_cast<int>(blockIdx.x) * inner_columns - tile_steps + lane * cells;
  const int top = static_cast<int>(blockIdx.y) * inner_rows - tile_steps;
#pragma unroll
  for (int r = first; r < first + rows_of_warp; ++r) tiles[0][r][lane] = load_or_zero(in, grid, top + r, column);
#pragma unroll
  for (int s = 0; s < tile_steps; ++s) {
    __syncthreads();
    Cells above = tiles[s % 2][max(first - 1, 0)][lane], centre = tiles[s % 2][first][lane];
#pragma unroll
    for (int k = 0; k < rows_of_warp; ++k) {
      const int r = first + k, row = top + r;
      const Cells below = tiles[s % 2][min(r + 1, tile_rows - 1)][lane];
      const Cells result = step(above, centre, below, border_at(grid, row, column));
      if (s + 1 < tile_steps) tiles[(s + 1) % 2][r][lane] = result;
      else if (r >= tile_steps && r < tile_rows - tile_steps && lane > 0 && lane < lanes - 1 && row < grid.rows &&
               column < grid.columns)
        store(out, grid, row, column, result);
      above = centre, centre = below;
    }
  }
}

template <int steps>
struct Stream {
  static constexpr int margin = (steps + cells - 1) / cells * cells;  // of columns at each side of a warp's strip
  static constexpr int inner = warp_columns - 2 * margin;             // of the strip
  static constexpr int ahead = steps < most_steps ? 4 : 2;            // rows that are requested before they are needed
  // Of an SM: fewer registers would spill.
  static constexpr int least_blocks = steps < 4 ? 6 : steps == most_steps ? 2 : steps == 8 && AISP_SM < 90 ? 3 : 4;
};

// A warp's strip of 128 columns streams by. When a row arrives, each step can do the row before the one that the step before
// of it has just done, and keeps two rows for it. `checked`: the strip reaches the border of the grid.
template <int steps, bool checked>
__device__ __forceinline__ void stream_rows(const float* __restrict__ in, float* __restrict__ out, const GridSize& grid,
                                            int begin, int end, int column) {
  constexpr int ahead = checked ? 2 : Stream<steps>::ahead;
  const int lane = threadIdx.x % lanes;
  const bool is_inner = lane >= Stream<steps>::margin / cells && lane < lanes - Stream<steps>::margin / cells &&
                        (!checked || column < grid.columns);
  const auto fetch = [&](int row) { return checked ? load_or_zero(in, grid, row, column) : load(in, grid, row, column); };
  Cells kept[steps][2] = {}, next[ahead];
#pragma unroll
  for (int k = 0; k < ahead; ++k) next[k] = fetch(begin - steps + k);
  for (int first = begin - steps; first < end + steps; first += ahead)
#pragma unroll
    for (int k = 0; k < ahead; ++k) {
      const int row = first + k;
      Cells arrived = next[k];
      if (row + ahead < end + steps) next[k] = fetch(row + ahead);
#pragma unroll
      for (int s = 0; s < steps; ++s) {
        Cells& older = kept[s][k % 2];
        const Border border = checked ? border_at(grid, row - 1 - s, column) : Border{false, false, false};
        const Cells result = step(older, kept[s][1 - k % 2], arrived, border);
        older = arrived;
        arrived = result;
      }
      const int done = row - steps;
      if (is_inner && done >= begin && done < end) store(out, grid, done, column, arrived);
    }
}

template <int steps>
__global__ __launch_bounds__(lanes* stream_warps, Stream<steps>::least_blocks) void stream_kernel(const float* __restrict__ in,
                                                                                                  float* __restrict__ out,
                                                                                                  GridSize grid) {
  using Strip = Stream<steps>;
  const int strip = static_cast<int>(blockIdx.x) * stream_warps + static_cast<int>(threadIdx.x) / lanes;
  const int left = strip * Strip::inner - Strip::margin, column = left + static_cast<int>(threadIdx.x) % lanes * cells;
  const int begin = static_cast<int>(blockIdx.y) * chunk, end = min(begin + chunk, grid.rows);
  if (strip * Strip::inner >= grid.columns) return;
  if (left >= 0 && left + warp_columns <= grid.columns && begin >= steps && end + steps <= grid.rows)
    stream_rows<steps, false>(in, out, grid, begin, end, column);
  else stream_rows<steps, true>(in, out, grid, begin, end, column);
}

class TemporalBlocking final : public Workload {
 public:
  explicit TemporalBlocking(Setup& setup)
      : rows_{setup.size("rows")},
        columns_{setup.size("columns")},
        steps_{setup.size("steps")},
        trip_{setup.size("trip")},
        in_{setup.input<float>(rows_ * columns_, uniform(-1, 1), {.name = "grid"})},
        out_{setup.output<float>(rows_ * columns_, {.name = "relaxed grid"})},
        between_{setup.scratch<float>(rows_ * columns_, {.name = "grid between steps"})} {}

  Cost cost() const override {
    return {.flops = 6.0 * static_cast<double>(out_.size() * steps_), .bytes = static_cast<double>(in_.bytes() + out_.bytes())};
  }
  // All cells that the one at `index` depends on, of which fewer and fewer are advanced.
  double expected(std::size_t index) const override {
    const auto side = static_cast<std::int64_t>(2 * steps_ + 1), reach = static_cast<std::int64_t>(steps_);
    const auto rows = static_cast<std::int64_t>(rows_), columns = static_cast<std::int64_t>(columns_);
    const std::int64_t top = static_cast<std::int64_t>(index) / columns - reach,
                       left = static_cast<std::int64_t>(index) % columns - reach;
    std::vector<double> now(static_cast<std::size_t>(side * side)), before;
    const auto place = [side](std::int64_t y, std::int64_t x) { return static_cast<std::size_t>(y * side + x); };
    for (std::int64_t y = std::max<std::int64_t>(0, -top); y < std::min(side, rows - top); ++y)
      for (std::int64_t x = std::max<std::int64_t>(0, -left); x < std::min(side, columns - left); ++x)
        now[place(y, x)] = in_.host(static_cast<std::size_t>((top + y) * columns + left + x));
    for (std::int64_t s = 1; s <= reach; ++s) {
      before = now;
      for (std::int64_t y = std::max(s, 1 - top); y < std::min(side - s, rows - 1 - top); ++y)
        for (std::int64_t x = std::max(s, 1 - left); x < std::min(side - s, columns - 1 - left); ++x)
          now[place(y, x)] = double{of_centre} * before[place(y, x)] +
                             double{of_neighbour} * (before[place(y - 1, x)] + before[place(y + 1, x)] + before[place(y, x - 1)] +
                                                     before[place(y, x + 1)]);
    }
    return now[place(reach, reach)];
  }

  void one_step(Launch& launch) {
    const dim3 blocks{blocks_of(columns_, warp_columns), blocks_of(rows_, warps * step_rows)};
    trips(1, [&](const float* from, float* to) { launch(one_step_kernel, {blocks, dim3{lanes, warps}}, from, to, grid()); });
  }
  void temporal_4(Launch& launch) {
    const dim3 blocks{blocks_of(columns_, inner_columns), blocks_of(rows_, inner_rows)};
    trips(tile_steps, [&](const float* from, float* to) {
      launch(tile_kernel, {blocks, dim3{lanes, warps}, 2 * tile_bytes}, from, to, grid());
    });
  }
  template <int trip>
  void streaming(Launch& launch) {
    const dim3 blocks{blocks_of(blocks_of(columns_, Stream<trip>::inner), stream_warps), blocks_of(rows_, chunk)};
    trips(trip, [&](const float* from, float* to) {
      launch(stream_kernel<trip>, {blocks, lanes * stream_warps}, from, to, grid());
    });
  }
  void chosen_steps(Launch& launch) {
    switch (trip_) {
      case 1: return streaming<1>(launch);
      case 2: return streaming<2>(launch);
      case 4: return streaming<4>(launch);
      case 8: return streaming<8>(launch);
      case most_steps: return streaming<most_steps>(launch);
      default: throw Unsupported{"the streaming kernel is compiled for trips of 1, 2, 4, 8 and 16 steps"};
    }
  }

 private:
  static unsigned blocks_of(std::size_t count, unsigned each) { return static_cast<unsigned>((count + each - 1) / each); }
  GridSize grid() const { return {static_cast<int>(rows_), static_cast<int>(columns_)}; }
  // Takes all steps, some at a time; the last trip ends in the output.
  template <class Trip>
  void trips(std::size_t at_a_time, Trip trip) {
    if (steps_ % at_a_time != 0) throw Unsupported{"the steps are no multiple of the steps of a trip"};
    const float* from = in_;
    for (std::size_t left = steps_ / at_a_time; left > 0; --left) {
      float* const to = left % 2 == 1 ? out_.get() : between_.get();
      trip(from, to);
      from = to;
    }
  }

  std::size_t rows_, columns_, steps_, trip_;  // trip: steps of a launch of chosen_steps
  Input<float> in_;
  Output<float> out_;
  Scratch<float> between_;
};

}  // namespace

extern constinit const Pair temporal_blocking{
    .teaches = "several steps of a stencil on one trip through memory: bytes fall with the steps, and a margin is computed twice",
    .lesson = "temporal_4",
    .make = make<TemporalBlocking>,
    .baseline = {.name = "one_step", .run = call<&TemporalBlocking::one_step>},
    .optimized = variants({{.name = "temporal_4",
                            .run = call<&TemporalBlocking::temporal_4>,
                            .same_bits_as = "one_step",
                            .kernels = {.local_bytes = 0}},
                           {.name = "temporal_4_streaming",
                            .run = call<&TemporalBlocking::streaming<4>>,
                            .same_bits_as = "one_step",
                            .kernels = {.local_bytes = 0}},
                           {.name = "temporal_8_streaming",
                            .run = call<&TemporalBlocking::streaming<8>>,
                            .same_bits_as = "one_step",
                            .kernels = {.local_bytes = 0}}}),
    // The streaming kernel with one step a launch, which gains nothing, and with as many as the size says.
    .controls = variants({{.name = "streaming_1", .run = call<&TemporalBlocking::streaming<1>>, .same_bits_as = "one_step"},
                          {.name = "chosen_steps", .run = call<&TemporalBlocking::chosen_steps>, .same_bits_as = "one_step"}}),
    .bound = Bound::memory,
    // Steps average: their rounding errors fade.
    .tolerance = within(1e-6),
    .sizes = sizes({{.name = "rows", .full = 16384},
                    {.name = "columns", .full = 16384, .multiple = cells, .scales = false},
                    {.name = "steps", .full = 8, .multiple = 8, .most = most_steps, .scales = false},
                    {.name = "trip", .full = 2, .most = most_steps, .scales = false}}),
    // Sixteen steps in all.
    .sweep = cases({{"trip_1", "steps=16,trip=1"},
                    {"trip_2", "steps=16,trip=2"},
                    {"trip_4", "steps=16,trip=4"},
                    {"trip_8", "steps=16,trip=8"},
                    {"trip_16", "steps=16,trip=16"}}),
    .edges = cases({{"one_row", "rows=1,columns=4"},
                    {"one_cell_inside", "rows=3,columns=4"},
                    {"one_tile", "rows=61,columns=64"},
                    {"odd_tiles", "rows=301,columns=388,trip=8"},
                    {"long_trip", "rows=531,columns=500,steps=16,trip=16"}}),
};

}  // namespace aisp::ch09
