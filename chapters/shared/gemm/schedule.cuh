// SPDX-License-Identifier: Apache-2.0
// Which tile of C comes when. A schedule numbers the tiles of the clusters (a cluster's tiles lie one above the other), and every
// cluster computes each gridDim-th. Producer and consumers ask it independently and get the same answers.
#pragma once
#include <aisp/device/arch.cuh>

namespace aisp::gemm {

struct Extent {
  int m, n, k;  // of C and the factors; of one group's B where there are several
};

struct Tile {
  int m, n;      // its first row and column
  int k, k_end;  // what it sums over; k is a multiple of a stage's K
  int group;     // of B
  int m_end;     // rows from here on are not its own: they lie outside of C or belong to another group
  int slice;     // of K, for partial sums
};

namespace detail {

// The `index`th tile when bands of `band` rows of tiles are walked column by column, so that the tiles under way share both A and
// B; a band of one row is row-major order. The last band may be lower.
struct Place {
  int row, column;
};
__host__ __device__ __forceinline__ Place in_bands(int index, int rows, int columns, int band) {
  const int first_row = index / (band * columns) * band, height = min(band, rows - first_row);
  const int in_band = index - first_row * columns;
  return {first_row + in_band % height, in_band / height};
}

__host__ __device__ constexpr int tiles_of(int extent, int tile) { return (extent + tile - 1) / tile; }

}  // namespace detail

// The tiles of one product.
struct Bands {
  static constexpr bool ragged = false, windows = false, partial = false;
  int band = 8;  // rows of clusters
  Extent extent{};
  int rows = 0, columns = 0;

  template <class C>
  __host__ __device__ void fit(const Extent& whole) {
    extent = whole;
    rows = detail::tiles_of(extent.m, C::tile_m * C::cluster);
    columns = detail::tiles_of(extent.n, C::tile_n);
  }
  __host__ __device__ int most_tiles() const { return rows * columns; }
  __host__ __device__ __forceinline__ int number_of_tiles() const { return rows * columns; }

  template <class C>
  __host__ __device__ __forceinline__ bool at(int index, Tile& tile) const {
    if (index >= rows * columns) return false;
    const detail::Place place = detail::in_bands(index, rows, columns, band);
    tile = {place.row * (C::tile_m * C::cluster), place.column * C::tile_n, 0, extent.k, 0, extent.m, 0};
    return true;
  }
};

// The tiles of one product, each in parts along K: for products with fewer tiles than the GPU has multiprocessors. SlicesStore
// keeps the parts apart, and sum_slices_kernel adds them, always in the same order.
struct KSlices {
  static constexpr bool ragged = false, windows = false, partial = true;
  int slices = 1;  // at most; each has work
  Extent extent{};
  int rows = 0, columns = 0, slice_k = 0;

  template <class C>
  __host__ __device__ void fit(const Extent& whole) {
    extent = whole;
    rows = detail::tiles_of(extent.m, C::tile_m * C::cluster);
    columns = detail::tiles_of(extent.n, C::tile_n);
    slice_k = detail::tiles_of(detail::tiles_of(extent.k, slices), C::tile_k) * C::tile_k;
    slices = detail::tiles_of(extent.k, slice_k);
  }
  __host__ __device__ int most_tiles() const { return rows * columns * slices; }

  template <class C>
  __host__ __device__ __forceinline__ bool at(int index, Tile& tile) const {
    const int slice = index / (rows * columns), place = index - slice * rows * columns, row = place % rows;
    if (slice >= slices) return false;
    const int k = slice * slice_k;
    tile = {row * (C::tile_m * C::cluster), place / rows * C::tile_n, k, min(k + slice_k, extent.k), 0, extent.m, slice};
    return true;
  }
};

// The stages of all tiles of one product, one tile after the other, in as many ranges of equal length as there are clusters:
// each loads as much as the others, however few tiles there are. A range may begin and end inside of a tile: then there are sums
// of a part of K, at most two for each cluster, in a slot each. WholeOrPart stores both, and sum_parts_kernel adds the parts,
// always in the same order.
struct KRanges {
  static constexpr bool ragged = false, windows = false, partial = true, few_parts = false;
  static constexpr int whole = -1;  // in place of a slot

  int clusters = 1;  // at most; no more than run at once
  Extent extent{};
  int rows = 0, columns = 0, steps = 0;  // tiles, and stages of one
  int share = 0, rest = 0;               // of stages: the first `rest` ranges are longer by one

  template <class C>
  __host__ __device__ void fit(const Extent& of) {
    extent = of;
    rows = detail::tiles_of(extent.m, C::tile_m * C::cluster);
    columns = detail::tiles_of(extent.n, C::tile_n);
    steps = detail::tiles_of(extent.k, C::tile_k);
    const int stages = rows * columns * steps;
    if (clusters > stages) clusters = stages;
    if (clusters == 0) return;
    share = stages / clusters;
    rest = stages % clusters;
  }
  __host__ __device__ int most_tiles() const { return clusters; }
  __host__ __device__ int slots() const { return 2 * clusters; }
  // The first stage of a range, counted through all tiles.
  __host__ __device__ int begin(int range) const { return range * share + (range < rest ? range : rest); }
  // Return the slots of a part that begins a tile and does not end it, and of one that lies after a tile's beginning.
  static __host__ __device__ constexpr int first_slot(int range) { return 2 * range + 1; }
  static __host__ __device__ constexpr int later_slot(int range) { return 2 * range; }

  template <class C>
  __host__ __device__ __forceinline__ bool at(int index, Tile& tile) const {
    const int range = index % clusters, from = begin(range), to = begin(range + 1);
    const int number = from / steps + index / clusters, first = number * steps;
    if (first >= to) return false;
    const int step = max(from - first, 0), end = min(to - first, steps), row = number / columns;
    tile = {row * (C::tile_m * C::cluster),
            (number - row * columns) * C::tile_n,
            step * C::tile_k,
            min(end * C::tile_k, extent.k),
            0,
            extent.m,
            whole};
    if (step > 0) tile.slice = later_slot(range);
    else if (end < steps) tile.slice = first_slot(range);
    return true;
  }

  // For the kernel that adds parts: the ranges, and a tile of those that are cut.
  __host__ __device__ __forceinline__ const KRanges& cut() const { return *this; }
  template <class C>
  __host__ __device__ __forceinline__ Tile whole_tile(int number) const {
    const int row = number / columns;
    return {row * (C::tile_m * C::cluster), (number - row * columns) * C::tile_n, 0, extent.k, 0, extent.m, whole};
  }
};

// Whole tiles in the order of `Tiles` (Bands or GroupedRows) for as long as every cluster has one in every round, and the few
// that are left in ranges, as KRanges cut all tiles: for them alone a round would take as long as a full one. More than a quarter
// of a round stays whole, because ranges that are long read other parts of K than their neighbours do, and share little in L2.
// Source: Osama, Merrill, Cecka, Garland and Owens, "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix
// Multiplication on the GPU", 2023, where it is "data-parallel + one-tile Stream-K".
template <class Tiles>
struct LastRoundInRanges {
  static_assert(!Tiles::windows && !Tiles::partial);
  static constexpr bool ragged = Tiles::ragged, windows = false, partial = true, few_parts = true;
  static constexpr int whole = KRanges::whole;

  Tiles tiles{};
  int clusters = 1;  // at most; no more than run at once
  Extent extent{};
  int steps = 0;  // stages of a tile

  template <class C>
  __host__ __device__ void fit(const Extent& of) {
    tiles.template fit<C>(of);
    extent = of;
    steps = detail::tiles_of(of.k, C::tile_k);
    const int stages = tiles.most_tiles() * steps;
    if (clusters > stages) clusters = stages;
  }
  __host__ __device__ int most_tiles() const { return clusters; }

  // The ranges of the tiles from `first_tile` on, whose stages are counted from there. Some may be empty.
  struct Cut {
    int first_tile;
    int share, rest;
    __host__ __device__ __forceinline__ int begin(int range) const { return range * share + min(range, rest); }
  };
  __host__ __device__ __forceinline__ Cut cut() const {
    const int number = tiles.number_of_tiles(), rounds = number / clusters, more = number - rounds * clusters;
    const int first_tile = more > clusters / 4 ? number : rounds * clusters, stages = (number - first_tile) * steps;
    return {first_tile, stages / clusters, stages % clusters};
  }

  template <class C>
  __host__ __device__ __forceinline__ bool at(int index, Tile& tile) const {
    const Cut ranges = cut();
    if (index < ranges.first_tile) {
      tile = tile_at<C>(index);
      return true;
    }
    const int range = index % clusters, from = ranges.begin(range), to = ranges.begin(range + 1);
    const int number = from / steps + (index - ranges.first_tile) / clusters, first = number * steps;
    if (first >= to) return false;
    const int step = max(from - first, 0), end = min(to - first, steps);
    tile = tile_at<C>(ranges.first_tile + number);
    tile.k = step * C::tile_k;
    tile.k_end = min(end * C::tile_k, extent.k);
    if (step > 0) tile.slice = KRanges::later_slot(range);
    else if (end < steps) tile.slice = KRanges::first_slot(range);
    return true;
  }
  template <class C>
  __host__ __device__ __forceinline__ Tile whole_tile(int number) const {
    return tile_at<C>(cut().first_tile + number);
  }

 private:
  template <class C>
  __host__ __device__ __forceinline__ Tile tile_at(int number) const {
    Tile tile;
    tiles.template at<C>(number, tile);
    tile.slice = whole;
    return tile;
  }
};

// The tiles of a convolution, of stride 1 and with as many pixels as it is given, as a product whose A nobody writes down: row m
// of A is what a square filter sees around pixel m of images [image][y][x][channel], tap after tap, with zeros outside of the
// image. The rows of a tile are a box of lines of one image, so that what they have for one tap and a stage of channels is one
// box of a tensor map of four dimensions. It may begin before the image and end after it, where TMA fills in zeros. B lies
// along K, taps outermost. A box's lines may reach beyond the image, so that stores must be predicated (RowsStore).
struct Windows {
  static constexpr bool ragged = true, windows = true, partial = false;
  static constexpr int least_width = 16;  // of a box: the rows of a consumer warp lie in one line
  int height = 1, width = 1, channels = 1;
  int filter = 3;  // taps in a line and in a column, an odd number
  int band = 8;
  Extent extent{};
  int images = 0, rows = 0, columns = 0;                    // rows and columns of clusters' tiles
  int box_height = 0, box_width = 0, down = 0, across = 0;  // of a tile in pixels, of an image in boxes

  // The box of a tile that wastes the fewest rows, and of those the widest.
  template <class C>
  __host__ __device__ void fit(const Extent& whole) {
    extent = whole;
    images = extent.m / (height * width);
    box_width = 0;
    for (int wide = least_width; wide <= C::tile_m; wide *= 2) {
      if (C::tile_m % wide != 0) continue;
      const int high = C::tile_m / wide, down_so = detail::tiles_of(height, high), across_so = detail::tiles_of(width, wide);
      if (box_width != 0 && down_so * across_so > down * across) continue;
      box_height = high;
      box_width = wide;
      down = down_so;
      across = across_so;
    }
    rows = detail::tiles_of(images * down * across, C::cluster);
    columns = detail::tiles_of(extent.n, C::tile_n);
  }
  __host__ __device__ int most_tiles() const { return rows * columns; }

  // A tile's m counts the rows of all boxes.
  template <class C>
  __host__ __device__ __forceinline__ bool at(int index, Tile& tile) const {
    if (index >= rows * columns) return false;
    const detail::Place place = detail::in_bands(index, rows, columns, band);
    tile = {place.row * (C::tile_m * C::cluster), place.column * C::tile_n, 0, extent.k, 0, extent.m, 0};
    return true;
  }

  // The beginning of a box, in the order of the map's dimensions, and how many taps of its line are before it.
  struct Window {
    int channel, x, y, image;
    int in_line;
  };
  // Returns the box that a tile's first stage loads: the tile's own, moved by the filter's first tap.
  __device__ __forceinline__ Window first_window(const Tile& tile) const {
    const Box at = box(tile.m);
    return {0, at.x - filter / 2, at.y - filter / 2, at.image, 0};
  }
  // To what the next stage loads: a thread that divides for each would be late.
  template <class C>
  __device__ __forceinline__ void move(Window& window) const {
    window.channel += C::tile_k;
    if (window.channel < channels) return;
    window.channel = 0;
    ++window.x;
    if (++window.in_line < filter) return;
    window.in_line = 0;
    window.x -= filter;
    ++window.y;
  }

  // The rows of C that a warp's 16 rows from `row` of the tile on go to, and the end of those that exist.
  struct Rows {
    int first, end;
  };
  __device__ __forceinline__ Rows rows_of(const Tile& tile, int row) const {
    const Box of_tile = box(tile.m);
    const int down = row / box_width, x = of_tile.x + row - down * box_width, y = of_tile.y + down;
    const int line = (of_tile.image * height + y) * width;
    return {line + x, y < height && of_tile.image < images ? line + width : 0};
  }

 private:
  struct Box {
    int x, y, image;
  };
  // Boxes are numbered line by line through an image, and on in the next.
  __device__ __forceinline__ Box box(int m) const {
    const int number = m / (box_height * box_width), image = number / (down * across), in_image = number - image * down * across;
    const int line = in_image / across;
    return {(in_image - line * across) * box_width, line * box_height, image};
  }
};

// Rows of A and C in groups of any length, each multiplied by a B of its own, as the tokens of experts are. Where groups begin is
// known on the GPU alone: list_row_tiles_kernel makes a list of row tiles there, and a tile's last rows may be another group's,
// so that stores must be predicated (RowsStore). No band has rows of two groups: its tiles would load the B of both.
struct RowTile {
  int m, m_end, group;
  int band, band_rows;  // its first row tile, and how many it has
};
struct GroupedRows {
  static constexpr bool ragged = true, windows = false, partial = false;
  const RowTile* tiles = nullptr;  // most_row_tiles of them
  const int* count = nullptr;      // how many there are
  int groups = 1;
  Extent extent{};
  int columns = 0, most_rows = 0;

  // Groups begin with a tile of their own, so each but one may add one that is not full.
  template <class C>
  static __host__ __device__ constexpr int most_row_tiles(int rows, int groups) {
    return rows / (C::tile_m * C::cluster) + (groups < rows ? groups : rows);
  }

  template <class C>
  __host__ __device__ void fit(const Extent& whole) {
    extent = whole;
    columns = detail::tiles_of(extent.n, C::tile_n);
    most_rows = most_row_tiles<C>(extent.m, groups);
  }
  __host__ __device__ int most_tiles() const { return most_rows * columns; }
  __host__ __device__ __forceinline__ int number_of_tiles() const { return *count * columns; }

  template <class C>
  __host__ __device__ __forceinline__ bool at(int index, Tile& tile) const {
    if (index >= *count * columns) return false;
    // The bands before have as many tiles for each of their row tiles, so this one is of the same band.
    const RowTile& of_band = tiles[index / columns];
    const int in_band = index - of_band.band * columns, column = in_band / of_band.band_rows;
    const RowTile& listed = tiles[of_band.band + in_band - column * of_band.band_rows];
    tile = {listed.m, column * C::tile_n, 0, extent.k, listed.group, listed.m_end, 0};
    return true;
  }
};

// By one warp. Group g has the rows from offsets[g] to offsets[g + 1]; tile_rows is tile_m * cluster of the Config. The row tiles
// of a group are in as few bands of at most `band` as will do, whose heights differ by one at most.
template <class Offset>
__global__ __launch_bounds__(32) void list_row_tiles_kernel(const Offset* offsets, int groups, int tile_rows, int band,
                                                            RowTile* tiles, int* count) {
  const int lane = static_cast<int>(threadIdx.x);
  int before = 0;  // tiles of the groups before these 32
  for (int first = 0; first < groups; first += 32) {
    const int group = first + lane;
    const int begin = group < groups ? static_cast<int>(offsets[group]) : 0;
    const int end = group < groups ? static_cast<int>(offsets[group + 1]) : 0;
    const int own = detail::tiles_of(end - begin, tile_rows), bands = detail::tiles_of(own, band);
    int up_to = own;  // with this lane's
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(~0u, up_to, distance);
      if (lane >= distance) up_to += other;
    }
    const int first_tile = before + up_to - own;
    for (int i = 0, number = 0; number < bands; ++number) {
      const int first_of_band = i, band_rows = own / bands + (number < own % bands);
      for (; i < first_of_band + band_rows; ++i)
        tiles[first_tile + i] = {begin + i * tile_rows, end, group, first_tile + first_of_band, band_rows};
    }
    before += __shfl_sync(~0u, up_to, 31);
  }
  if (lane == 0) *count = before;
}

}  // namespace aisp::gemm
