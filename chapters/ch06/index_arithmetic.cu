// SPDX-License-Identifier: Apache-2.0
// Images [batch, height, width, 128 channels] cut into windows of 8 x 8 pixels, as window attention takes them: a strided copy of
// six dimensions. A generic copy divides a linear index by five extents that only the run knows. The GPU has no integer divider:
// each division is some 25 instructions, more in 64 bits. A multiplication by a number made once on the host replaces it, and a
// grid whose blocks are the coordinates needs none.
#include <cuda_bf16.h>
#include <aisp/pair.hpp>

#include <bit>

namespace aisp::ch06 {
namespace {

using bf16 = __nv_bfloat16;
constexpr int threads = 256;
constexpr unsigned window = 8, columns = 32, strips_per_image = 64, row_elements = window * 128;  // of a window: one copied run
constexpr unsigned row_quads = row_elements * sizeof(bf16) / sizeof(uint4);
constexpr int most_dimensions = 6;

// x / divisor as the upper half of x * multiplier, shifted: exact for x below 2^31 and divisors above 1.
struct Divisor {
  unsigned divisor = 0, multiplier = 0, shift = 0;

  Divisor() = default;
  explicit Divisor(unsigned by) : divisor{by} {
    const auto bits = static_cast<unsigned>(std::bit_width(by - 1));
    multiplier = static_cast<unsigned>(((std::uint64_t{1} << (31 + bits)) + by - 1) / by);
    shift = bits - 1;
  }
};

struct Division {
  template <class Index>
  static __device__ void divide(Index& rest, Index& coordinate, Index by) {
    coordinate = rest % by;
    rest /= by;
  }
  static __device__ void divide(unsigned& rest, unsigned& coordinate, const Divisor& by) {
    const unsigned quotient = __umulhi(rest, by.multiplier) >> by.shift;
    coordinate = rest - quotient * by.divisor;
    rest = quotient;
  }
};

// Extents of the output, outermost first, and how far apart neighbours along each lie in the input.
template <class Index, class Extent>
struct Layout {
  Extent extents[most_dimensions];
  Index strides[most_dimensions];
};

template <int dimensions, class Index, class Extent>
__global__ __launch_bounds__(threads) void generic_kernel(const bf16* in, bf16* out,
                                                          const __grid_constant__ Layout<Index, Extent> layout) {
  const Index i = Index{blockIdx.x} * threads + threadIdx.x;
  Index rest = i, from = 0;
#pragma unroll
  for (int d = dimensions - 1; d > 0; --d) {
    Index coordinate;
    Division::divide(rest, coordinate, layout.extents[d]);
    from += coordinate * layout.strides[d];
  }
  out[i] = in[from + rest * layout.strides[0]];
}

// Rows of a window, as they lie in the input: strip by strip of 8 lines, line by line, 32 windows side by side. How far apart
// they lie in the output, in rows:
struct RowStrides {
  unsigned strip, line, column;
};

__global__ __launch_bounds__(threads) void grid_coordinates_kernel(const bf16* in, bf16* out, RowStrides to) {
  constexpr unsigned blocks_per_row = row_elements / threads;
  const unsigned strip = blockIdx.z, column = blockIdx.y, line = blockIdx.x / blocks_per_row;
  const std::size_t offset = blockIdx.x % blocks_per_row * threads + threadIdx.x;
  const std::size_t in_row = (strip * window + line) * columns + column;
  const std::size_t out_row = strip * to.strip + line * to.line + column * to.column;
  out[out_row * row_elements + offset] = in[in_row * row_elements + offset];
}

// A block has half of a window: two lines, and the two after them.
__global__ __launch_bounds__(threads) void grid_coordinates_vec16_kernel(const uint4* in, uint4* out, RowStrides to) {
  constexpr unsigned lines = threads / row_quads;
  const unsigned strip = blockIdx.z, column = blockIdx.y, line = blockIdx.x * 2 * lines + threadIdx.x / row_quads;
  const std::size_t in_row = (strip * window + line) * columns + column;
  const std::size_t out_row = strip * to.strip + line * to.line + column * to.column;
  const unsigned offset = threadIdx.x % row_quads;
  const uint4 first = in[in_row * row_quads + offset], second = in[(in_row + lines * columns) * row_quads + offset];
  out[out_row * row_quads + offset] = first;
  out[(out_row + lines * to.line) * row_quads + offset] = second;
}

class IndexArithmetic final : public Workload {
 public:
  explicit IndexArithmetic(Setup& setup)
      : dimensions_{setup.size("dimensions")},
        images_{static_cast<unsigned>(setup.scaled(8))},
        strips_{images_ * strips_per_image},
        in_{setup.input<bf16>(std::size_t{strips_} * window * columns * row_elements, normal(0, 1), {.name = "images"})},
        out_{setup.output<bf16>(in_.size(), {.name = "windows"})},
        to_{dimensions_ == 2   ? RowStrides{window * columns, columns, 1}
            : dimensions_ == 3 ? RowStrides{window, 1, strips_ * window}
                               : RowStrides{window * columns, 1, window}} {
    constexpr unsigned row = row_elements, line = columns * row, strip = window * line;
    switch (dimensions_) {
      case 2: layout_ = {{strips_ * window * columns, row}, {row, 1}}; break;
      case 3: layout_ = {{columns, strips_ * window, row}, {row, line, 1}}; break;
      case 4: layout_ = {{strips_, columns, window, row}, {strip, row, line, 1}}; break;
      case 5: layout_ = {{strips_, columns, window, window, 128}, {strip, row, line, 128, 1}}; break;
      case 6:
        layout_ = {{images_, strips_per_image, columns, window, window, 128},
                   {strips_per_image * strip, strip, row, line, 128, 1}};
        break;
      default: throw Unsupported("dimensions must be 2 to 6");
    }
  }

  Cost cost() const override { return {.bytes = static_cast<double>(in_.bytes() + out_.bytes())}; }
  double expected(std::size_t rest) const override {
    std::size_t from = 0;
    for (std::size_t d = dimensions_; d-- > 0;) {
      from += rest % layout_.extents[d] * layout_.strides[d];
      rest /= layout_.extents[d];
    }
    return in_.host(from);
  }

  void index_64(Launch& launch) { generic<std::size_t, std::size_t>(launch); }
  void index_32(Launch& launch) { generic<unsigned, unsigned>(launch); }
  void fast_divmod(Launch& launch) { generic<unsigned, Divisor>(launch); }
  void grid_coordinates(Launch& launch) {
    launch(grid_coordinates_kernel, {.blocks = {row_elements / threads * window, columns, strips_}, .threads = threads}, in_,
           out_, to_);
  }
  void grid_coordinates_vec16(Launch& launch) {
    constexpr unsigned rows_per_block = 2 * threads / row_quads;
    launch(grid_coordinates_vec16_kernel, {.blocks = {window / rows_per_block, columns, strips_}, .threads = threads},
           reinterpret_cast<const uint4*>(in_.get()), reinterpret_cast<uint4*>(out_.get()), to_);
  }
  // A copy has three dimensions: one for each column of windows, of lines and strips.
  void memcpy_3d(Launch& launch) {
    constexpr std::size_t row = row_elements * sizeof(bf16);
    for (unsigned column = 0; column < columns; ++column) {
      cudaMemcpy3DParms copy{};
      copy.srcPtr = make_cudaPitchedPtr(const_cast<bf16*>(in_.get()) + column * row_elements, columns * row, row, window);
      copy.dstPtr =
          make_cudaPitchedPtr(out_ + std::size_t{column} * to_.column * row_elements, to_.line * row, row, to_.strip / to_.line);
      copy.extent = {row, window, strips_};
      copy.kind = cudaMemcpyDeviceToDevice;
      check(cudaMemcpy3DAsync(&copy, launch.stream));
    }
  }

 private:
  template <class Index, class Extent>
  void generic(Launch& launch) {
    switch (dimensions_) {
      case 2: return generic<2, Index, Extent>(launch);
      case 3: return generic<3, Index, Extent>(launch);
      case 4: return generic<4, Index, Extent>(launch);
      case 5: return generic<5, Index, Extent>(launch);
      default: return generic<6, Index, Extent>(launch);
    }
  }
  template <int dimensions, class Index, class Extent>
  void generic(Launch& launch) {
    Layout<Index, Extent> layout{};
    for (int d = 0; d < dimensions; ++d) {
      if (d > 0) layout.extents[d] = Extent{layout_.extents[d]};  // nothing is divided by the outermost
      layout.strides[d] = layout_.strides[d];
    }
    launch(generic_kernel<dimensions, Index, Extent>,
           {.blocks = static_cast<unsigned>(out_.size() / threads), .threads = threads}, in_, out_, layout);
  }

  std::size_t dimensions_;
  unsigned images_, strips_;
  Input<bf16> in_;
  Output<bf16> out_;
  RowStrides to_;
  Layout<unsigned, unsigned> layout_{};
};

}  // namespace

extern constinit const Pair index_arithmetic{
    .teaches = "the GPU has no integer divider: a linear index over six dimensions costs more than the copy that it steers",
    .lesson = "fast_divmod",
    .make = make<IndexArithmetic>,
    .baseline = {.name = "index_64", .run = call<&IndexArithmetic::index_64>},
    .optimized = variants({{.name = "index_32", .run = call<&IndexArithmetic::index_32>},
                           {.name = "fast_divmod", .run = call<&IndexArithmetic::fast_divmod>},
                           {.name = "grid_coordinates", .run = call<&IndexArithmetic::grid_coordinates>},
                           {.name = "grid_coordinates_vec16", .run = call<&IndexArithmetic::grid_coordinates_vec16>}}),
    .libraries = variants({{.name = "memcpy_3d", .run = call<&IndexArithmetic::memcpy_3d>}}),
    .bound = Bound::memory,
    .tolerance = exact,
    // Four, five and six dimensions describe the same copy, three another order of the same rows, two a plain copy.
    .sizes = sizes({{.name = "dimensions", .full = 6, .most = most_dimensions, .scales = false}}),
    .sweep = cases({{"dimensions_2", "dimensions=2"},
                    {"dimensions_3", "dimensions=3"},
                    {"dimensions_4", "dimensions=4"},
                    {"dimensions_5", "dimensions=5"},
                    {"dimensions_6", "dimensions=6"}}),
    .edges = cases({{"dimensions_1", "dimensions=1"}, {"dimensions_3", "dimensions=3"}}),
};

}  // namespace aisp::ch06
