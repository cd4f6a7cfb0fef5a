// SPDX-License-Identifier: Apache-2.0
// The host's side of the engine: a Gemm is made once for its matrices, and run as often as wanted. README.md shows how. Its
// kernel is compiled here, or at run time (source.hpp).
#pragma once
#include <cuda_fp16.h>
#include <aisp/device_attribute.hpp>
#include <aisp/launch.hpp>
#include <aisp/needs.hpp>
#include <aisp/tensor_map.hpp>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "kernel.cuh"

namespace aisp::gemm {

namespace detail {

inline constexpr std::size_t most_shared_bytes = 227 * 1024;  // of a block on sm_90

template <class Element>
constexpr CUtensorMapDataType map_type() {
  if constexpr (std::is_same_v<Element, bf16>) return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  else if constexpr (std::is_same_v<Element, __half>) return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  else if constexpr (std::is_same_v<Element, float>) return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  else return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

inline int narrow(std::size_t extent) {
  if (!std::in_range<int>(extent)) throw std::logic_error{"an extent of a GEMM does not fit into an int"};
  return static_cast<int>(extent);
}

inline void require(bool holds, const std::string& otherwise) {
  if (!holds) throw std::logic_error{"GEMM: " + otherwise};
}

// Boxes of `box` rows of M or N by 128 bytes of K.
template <class Operand>
CUtensorMap operand_map(const char* name, const typename Operand::Element* data, std::size_t extent, std::size_t k,
                        unsigned box) {
  using Element = typename Operand::Element;
  if constexpr (Operand::packed) {
    require(k % Operand::tile_k == 0, std::string{"k of a packed "} + name + " must be a multiple of " +
                                          std::to_string(Operand::tile_k) + ", not " + std::to_string(k));
    const std::uint64_t lines = k / Operand::tile_k * Operand::lines;
    const std::uint64_t sizes[] = {32, lines, (extent + 63) / 64}, strides[] = {128, lines * 128};
    const std::uint32_t boxes[] = {32, Operand::lines, box / 64};
    return tensor_map(CU_TENSOR_MAP_DATA_TYPE_UINT32, data, sizes, strides, boxes, CU_TENSOR_MAP_SWIZZLE_NONE);
  } else if constexpr (in_panels<Operand>) {
    const std::uint64_t sizes[] = {Operand::tile_k, extent, (k + Operand::tile_k - 1) / Operand::tile_k};
    const std::uint64_t strides[] = {128, extent * 128};
    const std::uint32_t boxes[] = {Operand::tile_k, box, 1};
    return tensor_map(map_type<Element>(), data, sizes, strides, boxes);
  } else if constexpr (Operand::major == Major::k) {
    require(k * sizeof(Element) % 16 == 0,
            std::string{"rows of "} + name + " must be multiples of 16 bytes, k is " + std::to_string(k));
    return matrix_map(map_type<Element>(), sizeof(Element), data, extent, k, box, Operand::tile_k);
  } else {
    // As columns of boxes of 64 by k, so that one copy brings a whole tile.
    require(extent % 64 == 0, std::string{"the extent of "} + name + " that does not lie along K must be a multiple of 64, not " +
                                  std::to_string(extent));
    const std::uint64_t sizes[] = {64, k, extent / 64}, strides[] = {extent * sizeof(Element), 64 * sizeof(Element)};
    const std::uint32_t boxes[] = {64, Operand::tile_k, box / 64};
    return tensor_map(map_type<Element>(), data, sizes, strides, boxes);
  }
}

// Boxes of as many pixels of an image as a tile has rows, by 128 bytes of channels.
template <class Operand>
CUtensorMap windows_map(const typename Operand::Element* images, const Windows& windows) {
  using Element = typename Operand::Element;
  const auto channels = static_cast<std::uint64_t>(windows.channels), width = static_cast<std::uint64_t>(windows.width),
             height = static_cast<std::uint64_t>(windows.height);
  const std::uint64_t sizes[] = {channels, width, height, static_cast<std::uint64_t>(windows.images)};
  const std::uint64_t strides[] = {channels * sizeof(Element), width * channels * sizeof(Element),
                                   height * width * channels * sizeof(Element)};
  const std::uint32_t boxes[] = {Operand::tile_k, static_cast<std::uint32_t>(windows.box_width),
                                 static_cast<std::uint32_t>(windows.box_height), 1};
  return tensor_map(map_type<Element>(), images, sizes, strides, boxes);
}

// Whether the windows' own numbers are those of a product with these extents.
template <class C>
void require_windows(const Windows& windows, std::size_t m, std::size_t k) {
  const auto size = [](int extent) { return static_cast<std::size_t>(extent); };
  require(windows.height > 0 && windows.width > 0 && windows.filter > 0 && windows.filter % 2 == 1,
          "images have pixels, and a filter has an odd number of taps in a line");
  require(windows.channels > 0 && windows.channels % C::tile_k == 0,
          "channels of windows must be a multiple of " + std::to_string(C::tile_k) + ", not " + std::to_string(windows.channels));
  require(m % (size(windows.height) * size(windows.width)) == 0, "m must be the pixels of whole images");
  require(k == size(windows.filter) * size(windows.filter) * size(windows.channels),
          "k must be the filter's taps times channels");
}

template <int row_bytes>
constexpr CUtensorMapSwizzle store_swizzle() {
  return row_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_32B;
}

}  // namespace detail

// c[m][n / narrowing] = a(m, k) b(group, k, n), in the orders that the Config's operands say. m: of all groups together.
template <class A, class B, class Out>
struct Problem {
  const A* a = nullptr;
  const B* b = nullptr;
  Out* c = nullptr;
  std::size_t m = 0, n = 0, k = 0, groups = 1;
  // For BlockScaled: [k / 128][a_scales_stride], by default m wide; [group][n / 128][k / 128]. Divisions are rounded up.
  const float *a_scales = nullptr, *b_scales = nullptr;
  std::size_t a_scales_stride = 0;
  const Out* other = nullptr;  // of TmaExchange, as C is
  // Scales of ScaledIntegers are those of rows and columns. Of IntegersThenBf16, too: a2[m][k2], b2[k2][n], and how many of k2
  // are used, on the GPU.
  const bf16 *a2 = nullptr, *b2 = nullptr;
  std::size_t k2 = 0;
  const int* used = nullptr;
};

// A launch of the kernel for one problem but for the kernel itself, which knows its Config; this type does not.
template <class Schedule, class Mainloop, class Epilogue, class Store>
struct Prepared {
  using Kernel = void(MapsFor<Mainloop>, Schedule, Mainloop, Epilogue, Store);

  MapsFor<Mainloop> maps{};
  Schedule schedule{};
  Mainloop mainloop{};
  Store store{};
  Grid grid{.blocks = dim3{0}, .threads = dim3{0}};  // no blocks: c has no elements

  void run(cudaStream_t stream, Kernel* kernel, const Epilogue& epilogue = {}) const {
    if (grid.blocks.x > 0) launch_kernel(stream, kernel, grid, maps, schedule, mainloop, epilogue, store);
  }
};

template <class C, class Schedule = Bands, class Epilogue = Identity, class Store = TmaStore<>>
class Gemm {
 public:
  using A = typename C::A::Element;
  using B = typename C::B::Element;
  using Out = typename Store::Element;
  static constexpr unsigned shared_bytes = gemm::shared_bytes<C, Epilogue, Store>;
  static_assert(shared_bytes <= detail::most_shared_bytes, "the ring and the staging do not fit into a block's shared memory");

  using Problem = gemm::Problem<A, B, Out>;
  using Prepared = gemm::Prepared<Schedule, typename C::Mainloop, Epilogue, Store>;

  explicit Gemm(const Problem& problem, const Schedule& schedule = {}) {
    auto& [maps, tiles, mainloop, store, grid] = prepared_;
    const auto& [a, b, c, m, n, k, groups, a_scales, b_scales, a_scales_stride, other, a2, b2, k2, used] = problem;
    detail::require(k > 0, "k is 0");
    const std::size_t columns = n / Epilogue::narrowing;
    if constexpr (Store::any_width) detail::require(m % 2 == 0, "m must be even for this store");
    else {
      constexpr int step = 8 * Epilogue::narrowing;
      detail::require(n % step == 0, "n must be a multiple of " + std::to_string(step) + ", not " + std::to_string(n));
      detail::require(columns * sizeof(Out) % 16 == 0, "rows of c must be multiples of 16 bytes");
    }
    detail::require(groups == 1 || C::B::major == Major::k || k % C::tile_k == 0,
                    "k must be a multiple of " + std::to_string(C::tile_k) + " for groups of a B along N");
    tiles = schedule;
    if constexpr (Schedule::windows) detail::require_windows<C>(tiles, m, k);
    tiles.template fit<C>({detail::narrow(m), detail::narrow(n), detail::narrow(k)});
    detail::narrow(groups * std::max(n, k));
    detail::narrow(static_cast<std::size_t>(tiles.most_tiles()));
    if (m == 0 || n == 0) return;

    const bool b_along_k = C::B::major == Major::k;
    if constexpr (Schedule::windows) {
      detail::narrow(static_cast<std::size_t>(tiles.rows) * C::cluster * C::tile_m);  // boxes reach beyond their images
      maps.a = detail::windows_map<typename C::A>(a, tiles);
    } else maps.a = detail::operand_map<typename C::A>("a", a, m, k, C::tile_m);
    maps.b = detail::operand_map<typename C::B>("b", b, b_along_k ? groups * n : n, b_along_k ? k : groups * k,
                                                C::tile_n / C::cluster);
    constexpr int tile_columns = C::tile_n / Epilogue::narrowing, box = Store::template box_columns<tile_columns>;
    if constexpr (box > 0)
      maps.c = matrix_map(detail::map_type<Out>(), sizeof(Out), c, m, columns, Store::box_rows, box,
                          detail::store_swizzle<box * sizeof(Out)>());
    if constexpr (exchanges<Store>) {
      static_assert(!C::Mainloop::scaled, "both need the same place for their map");
      detail::require(other != nullptr, "there is no other matrix");
      maps.extra = matrix_map(detail::map_type<Out>(), sizeof(Out), other, m, columns, Store::box_rows, box,
                              detail::store_swizzle<box * sizeof(Out)>());
    }
    if constexpr (C::Mainloop::scaled) {
      const std::size_t stride = a_scales_stride == 0 ? m : a_scales_stride;
      detail::require(stride % 4 == 0, "rows of a_scales must be multiples of 4, set a_scales_stride");
      const std::uint64_t sizes[] = {m, (k + 127) / 128}, strides[] = {stride * sizeof(float)};
      const std::uint32_t boxes[] = {Ring<C>::scale_box, 1};
      maps.extra = tensor_map(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, a_scales, sizes, strides, boxes, CU_TENSOR_MAP_SWIZZLE_NONE);
      mainloop = {b_scales, detail::narrow((n + 127) / 128), detail::narrow((k + 127) / 128)};
    }
    if constexpr (has_two_parts<typename C::Mainloop>) {
      using A2 = typename C::Mainloop::A2;
      using B2 = typename C::Mainloop::B2;
      detail::require(k2 > 0 && used != nullptr, "there is no second part");
      maps.a2 = detail::operand_map<A2>("a2", a2, m, k2, C::tile_m);
      maps.b2 = detail::operand_map<B2>("b2", b2, n, k2, C::tile_n / C::cluster);
      mainloop.used = used;
    }
    if constexpr (adds_integers<typename C::Mainloop>) {
      mainloop.rows = a_scales, mainloop.columns = b_scales;
      mainloop.m = detail::narrow(m), mainloop.n = detail::narrow(n);
    }
    if constexpr (Store::predicated) store.c = c;
    const auto most = static_cast<unsigned>(tiles.most_tiles());
    if constexpr (requires(Schedule of) { of.clusters; })
      detail::require(most <= multiprocessors() / C::cluster, "all clusters with a range must run at once");
    grid = {.blocks = std::min(most, std::max(1u, multiprocessors() / C::cluster)) * C::cluster,
            .threads = C::threads,
            .shared_bytes = shared_bytes,
            .cluster = C::cluster == 1 ? dim3{} : dim3{C::cluster},
            .overlapping = C::begins_early};
  }

  void run(cudaStream_t stream, const Epilogue& epilogue = {}) const {
    prepared_.run(stream, gemm_kernel<C, Schedule, Epilogue, Store>, epilogue);
  }
  // A store of more than C alone.
  void set_store(const Store& store) { prepared_.store = store; }
  // For a kernel of the same types that was compiled elsewhere.
  const Prepared& prepared() const { return prepared_; }

  const Schedule& schedule() const { return prepared_.schedule; }
  static constexpr Needs needs() { return {.min_sm = 90, .max_sm = 90, .dsmem = C::cluster > 1}; }

 private:
  Prepared prepared_;
};

// Adds up what KSlices have left in `workspace`, with epilogue and store as a Gemm has them.
template <int tile_n = 32, class Epilogue, class Store>
void sum_slices(cudaStream_t stream, const float* workspace, const KSlices& of, const Epilogue& epilogue, const Store& store) {
  const dim3 blocks(static_cast<unsigned>(detail::tiles_of(of.extent.n, tile_n)),
                    static_cast<unsigned>(detail::tiles_of(of.extent.m, 64)));
  if (blocks.x * blocks.y == 0) return;
  launch_kernel(stream, sum_slices_kernel<tile_n, Epilogue, Store>,
                {.blocks = blocks, .threads = warpgroup_threads, .overlapping = true}, workspace, of.slices, of.extent.m,
                of.extent.n, epilogue, store);
}

// A product in KRanges or LastRoundInRanges with the kernel that adds what they leave in parts. `Whole`: RowsStore or
// ColumnsStore.
template <class C, class Epilogue, class Whole, class Ranges = KRanges>
class GemmInRanges {
  static constexpr int cluster_rows = C::tile_m * C::cluster;
  using Store = WholeOrPart<Whole, cluster_rows>;
  using Product = Gemm<C, Ranges, WhenWhole<Epilogue>, Store>;

 public:
  using Problem = typename Product::Problem;

  // As many as all multiprocessors have of them.
  static std::size_t workspace_floats() { return std::size_t{2} * (multiprocessors() / C::cluster) * cluster_rows * C::tile_n; }
  // `ranges`: how its tiles come; it gets as many clusters as there can be.
  GemmInRanges(const Problem& problem, float* workspace, Ranges ranges = {})
      : product_{problem, on_all_multiprocessors(ranges)}, store_{problem.c, reinterpret_cast<float4*>(workspace)} {
    product_.set_store(store_);
  }

  void run(cudaStream_t stream, const Epilogue& epilogue = {}) const {
    product_.run(stream, {epilogue});
    const Ranges& ranges = product_.schedule();
    if (ranges.clusters < 2) return;
    const dim3 blocks(static_cast<unsigned>(ranges.clusters - 1), cluster_rows / 64, C::tile_n / sum_columns<Ranges, C::tile_n>);
    launch_kernel(stream, sum_parts_kernel<C, Ranges, Epilogue, Whole>,
                  {.blocks = blocks, .threads = warpgroup_threads, .overlapping = true}, ranges, epilogue, store_);
  }
  static constexpr Needs needs() { return Product::needs(); }

 private:
  static Ranges on_all_multiprocessors(Ranges ranges) {
    ranges.clusters = static_cast<int>(multiprocessors() / C::cluster);
    return ranges;
  }

  Product product_;
  Store store_;
};

}  // namespace aisp::gemm
