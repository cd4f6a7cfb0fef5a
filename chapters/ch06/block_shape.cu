// SPDX-License-Identifier: Apache-2.0
// A volume is smoothed: each cell becomes the weighted mean of the 27 around it. A warp takes its threads along x first, so in a
// block of 8 x 8 x 8 it covers four rows of eight cells, and each of its 27 loads looks up four cache lines. Blocks that are long
// in x look up one. Which of them is best is not known beforehand, but quickly measured.
#include <aisp/libraries/fastest.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

namespace aisp::ch06 {
namespace {

constexpr unsigned edge = 512;      // along x and y
constexpr unsigned most_deep = 64;  // cells of a block along z, and what the depth of the volume is a multiple of

// Along each axis a cell counts twice and its neighbours once. Cells beyond a face have the value of the cell at it.
__device__ constexpr float weight(int offset) { return offset == 0 ? 2 : 1; }
constexpr float all_weights = 4 * 4 * 4;
__device__ unsigned clamped(unsigned at, int offset, unsigned size) {
  return offset < 0 ? max(at, 1u) - 1 : min(at + offset, size - 1);
}
__device__ float along_x(float left, float cell, float right) { return fmaf(2, cell, left + right); }

// Calls `add(row, weight)` for the nine rows around (y, z).
template <class Add>
__device__ void for_each_row(unsigned y, unsigned z, unsigned depth, Add add) {
#pragma unroll
  for (int dz = -1; dz <= 1; ++dz)
#pragma unroll
    for (int dy = -1; dy <= 1; ++dy)
      add(std::size_t{clamped(z, dz, depth)} * edge + clamped(y, dy, edge), weight(dz) * weight(dy));
}

__global__ void cell_kernel(const float* in, float* out, unsigned depth) {
  const unsigned x = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned y = blockIdx.y * blockDim.y + threadIdx.y;
  const unsigned z = blockIdx.z * blockDim.z + threadIdx.z;
  const unsigned left = clamped(x, -1, edge), right = clamped(x, 1, edge);
  float sum = 0;
  for_each_row(y, z, depth, [&](std::size_t row, float each) {
    const float* const cells = in + row * edge;
    sum = fmaf(each, along_x(cells[left], cells[x], cells[right]), sum);
  });
  out[(std::size_t{z} * edge + y) * edge + x] = sum / all_weights;
}

__global__ void four_cells_kernel(const float* in, float4* out, unsigned depth) {
  const unsigned x = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  const unsigned y = blockIdx.y * blockDim.y + threadIdx.y;
  const unsigned z = blockIdx.z * blockDim.z + threadIdx.z;
  const unsigned left = clamped(x, -1, edge), right = clamped(x + 3, 1, edge);
  float4 sum{};
  for_each_row(y, z, depth, [&](std::size_t row, float each) {
    const float* const cells = in + row * edge;
    const float4 c = *reinterpret_cast<const float4*>(cells + x);
    sum.x = fmaf(each, along_x(cells[left], c.x, c.y), sum.x);
    sum.y = fmaf(each, along_x(c.x, c.y, c.z), sum.y);
    sum.z = fmaf(each, along_x(c.y, c.z, c.w), sum.z);
    sum.w = fmaf(each, along_x(c.z, c.w, cells[right]), sum.w);
  });
  out[((std::size_t{z} * edge + y) * edge + x) / 4] =
      make_float4(sum.x / all_weights, sum.y / all_weights, sum.z / all_weights, sum.w / all_weights);
}

// All blocks of 128 to 1024 threads whose edges are powers of two, four or more along x.
std::vector<dim3> shapes(unsigned most_wide) {
  std::vector<dim3> all;
  for (unsigned threads = 128; threads <= 1024; threads *= 2)
    for (unsigned x = 4; x <= std::min(threads, most_wide); x *= 2)
      for (unsigned y = 1; y <= threads / x; y *= 2)
        if (const unsigned z = threads / x / y; z <= most_deep) all.push_back({x, y, z});
  return all;
}

class BlockShape final : public Workload {
 public:
  explicit BlockShape(Setup& setup)
      : wide_{static_cast<unsigned>(setup.size("wide"))},
        depth_{static_cast<unsigned>(setup.scaled(edge, most_deep))},
        in_{setup.input<float>(std::size_t{edge} * edge * depth_, uniform(0, 1), {.name = "volume"})},
        out_{setup.output<float>(in_.size(), {.name = "smoothed volume"})} {
    if (!std::has_single_bit(wide_)) throw Unsupported("wide must be a power of two");
  }

  Cost cost() const override {
    return {.flops = 37.0 * static_cast<double>(in_.size()), .bytes = static_cast<double>(in_.bytes() + out_.bytes())};
  }
  double expected(std::size_t i) const override {
    const std::array<std::size_t, 3> cell{i % edge, i / edge % edge, i / edge / edge}, sizes{edge, edge, depth_};
    double sum = 0;
    for (int k = 0; k < 27; ++k) {
      const std::array<int, 3> offset{k % 3 - 1, k / 3 % 3 - 1, k / 9 - 1};
      std::array<std::size_t, 3> at{};
      double weight = 1;
      for (int axis = 0; axis < 3; ++axis) {
        const auto moved = static_cast<std::ptrdiff_t>(cell[axis]) + offset[axis];
        at[axis] = static_cast<std::size_t>(std::clamp(moved, std::ptrdiff_t{0}, static_cast<std::ptrdiff_t>(sizes[axis]) - 1));
        weight *= offset[axis] == 0 ? 2 : 1;
      }
      sum += weight * in_.host((at[2] * edge + at[1]) * edge + at[0]);
    }
    return sum / static_cast<double>(all_weights);
  }

  // The shape that the search has found, as it goes between <<< and >>>.
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant != "swept" && variant != "four_cells") return;
    const dim3 shape = variant == "swept" ? swept_ : swept_quads_;
    metrics.report("block_x", shape.x, "threads", Metrics::Better::higher);
    metrics.report("block_y", shape.y, "threads", Metrics::Better::higher);
    metrics.report("block_z", shape.z, "threads", Metrics::Better::higher);
  }

  // A cube where it is 8 wide; else 512 threads that are wider, the rest of them spread over y and z.
  void cube(Launch& launch) {
    const unsigned rest = 512 / wide_;
    unsigned y = 1;
    while (y * y < rest) y *= 2;
    cells(launch, {wide_, y, rest / y});
  }
  void rows_64_4_2(Launch& launch) { cells(launch, {64, 4, 2}); }
  void rows_32_4_4(Launch& launch) { cells(launch, {32, 4, 4}); }
  void sweep(Launch& launch) {
    if (swept_.x == 0) swept_ = best(launch, edge, [&](dim3 shape) { cells(launch, shape); });
  }
  void swept(Launch& launch) { cells(launch, swept_); }
  void sweep_quads(Launch& launch) {
    if (swept_quads_.x == 0) swept_quads_ = best(launch, edge / 4, [&](dim3 shape) { quads(launch, shape); });
  }
  void four_cells(Launch& launch) { quads(launch, swept_quads_); }

 private:
  Grid grid(unsigned row, dim3 block) const {
    return {.blocks = {row / block.x, edge / block.y, depth_ / block.z}, .threads = block};
  }
  void cells(Launch& launch, dim3 block) { launch(cell_kernel, grid(edge, block), in_, out_, depth_); }
  void quads(Launch& launch, dim3 block) {
    launch(four_cells_kernel, grid(edge / 4, block), in_, reinterpret_cast<float4*>(out_.get()), depth_);
  }
  template <class Run>
  static dim3 best(Launch& launch, unsigned row, const Run& run) {
    const std::vector<dim3> all = shapes(row);
    return all[fastest(launch.stream, all.size(), [&](std::size_t i) { run(all[i]); }).value()];
  }

  unsigned wide_, depth_;
  Input<float> in_;
  Output<float> out_;
  dim3 swept_{0, 0, 0}, swept_quads_{0, 0, 0};  // found once
};

}  // namespace

extern constinit const Pair block_shape{
    .teaches = "a warp takes its threads along x first: a block that is long in x looks up one cache line per load, a cube four",
    .lesson = "rows_64_4_2",
    .make = make<BlockShape>,
    .baseline = {.name = "cube", .run = call<&BlockShape::cube>},
    .optimized =
        variants({{.name = "rows_64_4_2", .run = call<&BlockShape::rows_64_4_2>},
                  {.name = "swept",
                   .run = call<&BlockShape::swept>,
                   .prepare = call<&BlockShape::sweep>,
                   .best_of = {"cube", "rows_64_4_2", "rows_32_4_4"}},
                  {.name = "four_cells", .run = call<&BlockShape::four_cells>, .prepare = call<&BlockShape::sweep_quads>}}),
    .controls = variants({{.name = "rows_32_4_4", .run = call<&BlockShape::rows_32_4_4>}}),
    .bound = Bound::memory,
    // 27 terms, none of them negative.
    .tolerance = within(1e-6),
    // How wide the baseline's block is, of 512 threads in all: 8 makes the cube.
    .sizes = sizes({{.name = "wide", .full = 8, .multiple = 4, .most = 128, .scales = false}}),
    .sweep = cases({{"wide_4", "wide=4"},
                    {"wide_8", "wide=8"},
                    {"wide_16", "wide=16"},
                    {"wide_32", "wide=32"},
                    {"wide_64", "wide=64"},
                    {"wide_128", "wide=128"}}),
    .edges = cases({{"wide_4", "wide=4"}}),
};

}  // namespace aisp::ch06
