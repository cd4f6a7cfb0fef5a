// SPDX-License-Identifier: Apache-2.0
// A median filter of 5 x 5 pixels. Sorted as one would on a CPU, with loops that depend on the data, the 25 values form an array
// with run-time indices. Registers have no such indices: the array lies in local memory, and each move is a load and a store. A
// fixed list of compare-exchanges sorts nothing but the middle, has its indices in the instructions and no branches. Four pixels
// a thread share columns that are sorted once. The image has a frame of two pixels, so that no window leaves it.
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <utility>

#include "residency.hpp"

namespace aisp::ch08 {
namespace {

constexpr int side = 5, window = side * side, frame = side - 1;
constexpr int width = 8192, pitch = width + frame;
constexpr dim3 block{32, 8};

struct Exchange {
  std::uint8_t low, high;  // afterwards the smaller value is at `low`
};
template <std::size_t count>
struct Network {
  Exchange pairs[count];
};

// The middle of 25 values at 12 (Devillard, Fast median search: an ANSI C implementation, 1998).
constexpr Network<99> middle_of_25{
    {{0, 1},   {3, 4},   {2, 4},   {2, 3},   {6, 7},   {5, 7},   {5, 6},   {9, 10},  {8, 10},  {8, 9},   {12, 13},
     {11, 13}, {11, 12}, {15, 16}, {14, 16}, {14, 15}, {18, 19}, {17, 19}, {17, 18}, {21, 22}, {20, 22}, {20, 21},
     {23, 24}, {2, 5},   {3, 6},   {0, 6},   {0, 3},   {4, 7},   {1, 7},   {1, 4},   {11, 14}, {8, 14},  {8, 11},
     {12, 15}, {9, 15},  {9, 12},  {13, 16}, {10, 16}, {10, 13}, {20, 23}, {17, 23}, {17, 20}, {21, 24}, {18, 24},
     {18, 21}, {19, 22}, {8, 17},  {9, 18},  {0, 18},  {0, 9},   {10, 19}, {1, 19},  {1, 10},  {11, 20}, {2, 20},
     {2, 11},  {12, 21}, {3, 21},  {3, 12},  {13, 22}, {4, 22},  {4, 13},  {14, 23}, {5, 23},  {5, 14},  {15, 24},
     {6, 24},  {6, 15},  {7, 16},  {7, 19},  {13, 21}, {15, 23}, {7, 13},  {7, 15},  {1, 9},   {3, 11},  {5, 17},
     {11, 17}, {9, 17},  {4, 10},  {6, 12},  {7, 14},  {4, 6},   {4, 7},   {12, 14}, {10, 14}, {6, 7},   {10, 12},
     {6, 10},  {6, 17},  {12, 17}, {7, 17},  {7, 10},  {12, 18}, {7, 12},  {10, 18}, {12, 20}, {10, 20}, {10, 12}}};
constexpr Network<9> sort_5{{{0, 1}, {3, 4}, {2, 4}, {2, 3}, {1, 4}, {0, 3}, {0, 2}, {1, 3}, {1, 2}}};
// Odd-even merges (Batcher): of two sorted lists of 5; of two of 10, as far as it leads to the middle six, from the 8th smallest
// to the 13th.
constexpr Network<13> merge_5_5{
    {{0, 5}, {4, 9}, {4, 5}, {2, 7}, {2, 4}, {7, 5}, {1, 6}, {3, 8}, {3, 6}, {1, 2}, {3, 4}, {6, 7}, {8, 5}}};
constexpr Network<25> middle_of_10_10{{{0, 10}, {8, 18},  {8, 10}, {4, 14},  {4, 8},  {14, 10}, {2, 12}, {6, 16},  {6, 12},
                                       {6, 8},  {12, 14}, {1, 11}, {9, 19},  {9, 11}, {5, 15},  {5, 9},  {15, 11}, {3, 13},
                                       {7, 17}, {7, 13},  {7, 9},  {13, 15}, {7, 8},  {9, 12},  {13, 14}}};

__device__ __forceinline__ void exchange(float& low, float& high) {
  const float smaller = fminf(low, high);
  high = fmaxf(low, high);
  low = smaller;
}
template <const auto& network, std::size_t... k>
__device__ __forceinline__ void run(float* v, std::index_sequence<k...>) {
  (exchange(v[std::integral_constant<int, network.pairs[k].low>::value],
            v[std::integral_constant<int, network.pairs[k].high>::value]),
   ...);
}
template <const auto& network>
__device__ __forceinline__ void run(float* v) {
  run<network>(v, std::make_index_sequence<sizeof network.pairs / sizeof(Exchange)>{});
}

// Returns the calling thread's pixel in images of one pixel a thread.
__device__ std::size_t pixel(std::size_t row_pitch) {
  return (std::size_t{blockIdx.y} * block.y + threadIdx.y) * row_pitch + blockIdx.x * block.x + threadIdx.x;
}

__global__ void insertion_sort_kernel(const float* in, float* out) {
  const float* const corner = in + pixel(pitch);
  float v[window];
  for (int i = 0; i < window; ++i) {
    const float value = corner[i / side * pitch + i % side];
    int at = i;
    for (; at > 0 && v[at - 1] > value; --at) v[at] = v[at - 1];
    v[at] = value;
  }
  out[pixel(width)] = v[window / 2];
}

__device__ __forceinline__ void load(float (&v)[window], const float* corner) {
#pragma unroll
  for (int i = 0; i < window; ++i) v[i] = corner[i / side * pitch + i % side];
}

__global__ void network_kernel(const float* in, float* out) {
  float v[window];
  load(v, in + pixel(pitch));
  run<middle_of_25>(v);
  out[pixel(width)] = v[window / 2];
}

__constant__ const Network<99> table = middle_of_25;

// The same exchanges with indices that are read at run time.
__global__ void table_kernel(const float* in, float* out) {
  float v[window];
  load(v, in + pixel(pitch));
#pragma unroll 1
  for (const Exchange& pair : table.pairs) exchange(v[pair.low], v[pair.high]);
  out[pixel(width)] = v[window / 2];
}

// The sixth smallest of six and five values, both sorted: the 13th of all 25, when the six are the middle of the other 20.
__device__ __forceinline__ float middle_of(const float (&six)[6], const float (&five)[side]) {
  float middle = six[5];
#pragma unroll
  for (int i = 0; i < side; ++i) middle = fminf(middle, fmaxf(six[side - 1 - i], five[i]));
  return middle;
}
__device__ __forceinline__ void merge(float (&pair)[2 * side], const float (&a)[side], const float (&b)[side]) {
  float v[2 * side];
#pragma unroll
  for (int i = 0; i < side; ++i) v[i] = a[i], v[side + i] = b[i];
  run<merge_5_5>(v);
  constexpr int order[] = {0, 1, 2, 3, 4, 6, 7, 8, 5, 9};  // where the values of the result are
#pragma unroll
  for (int i = 0; i < 2 * side; ++i) pair[i] = v[order[i]];
}
__device__ __forceinline__ void middle(float (&six)[6], const float (&a)[2 * side], const float (&b)[2 * side]) {
  float v[4 * side];
#pragma unroll
  for (int i = 0; i < 2 * side; ++i) v[i] = a[i], v[2 * side + i] = b[i];
  run<middle_of_10_10>(v);
  constexpr int order[] = {7, 8, 9, 12, 13, 14};
#pragma unroll
  for (int i = 0; i < 6; ++i) six[i] = v[order[i]];
}

// Four neighbours' windows cover eight columns. The first two share columns 1 to 4, the last two 3 to 6; a value of those 20 can
// be a median only if it is one of their middle six.
__global__ void columns_kernel(const float* in, float* out) {
  const std::size_t y = std::size_t{blockIdx.y} * block.y + threadIdx.y, x = 4 * (blockIdx.x * block.x + threadIdx.x);
  float column[8][side];
#pragma unroll
  for (int row = 0; row < side; ++row) {
    const auto* from = reinterpret_cast<const float4*>(in + (y + row) * pitch + x);
    const float4 left = from[0], right = from[1];
    column[0][row] = left.x, column[1][row] = left.y, column[2][row] = left.z, column[3][row] = left.w;
    column[4][row] = right.x, column[5][row] = right.y, column[6][row] = right.z, column[7][row] = right.w;
  }
#pragma unroll
  for (auto& values : column) run<sort_5>(values);
  float early[2 * side], shared[2 * side], late[2 * side], left[6], right[6];
  merge(early, column[1], column[2]);
  merge(shared, column[3], column[4]);
  merge(late, column[5], column[6]);
  middle(left, early, shared);
  middle(right, shared, late);
  // A store by name, or the compiler splits it.
  __stwb(reinterpret_cast<float4*>(out + y * width + x), make_float4(middle_of(left, column[0]), middle_of(left, column[5]),
                                                                     middle_of(right, column[2]), middle_of(right, column[7])));
}

class LocalArrays final : public Workload {
 public:
  explicit LocalArrays(Setup& setup)
      : height_{setup.scaled(8192, block.y)},
        in_{setup.input<float>((height_ + frame) * pitch, uniform(0, 1), {.name = "image with its frame"})},
        out_{setup.output<float>(height_ * width, {.name = "medians"})} {}

  // A minimum or maximum takes two of an SM's 128 lanes' turns. What is not needed of an exchange is not counted.
  Cost cost() const override { return cost_of(selection); }
  Cost variant_cost(std::string_view variant) const override {
    return cost_of(variant == "shared_columns" ? sharing : selection);
  }
  double expected(std::size_t index) const override {
    std::array<double, window> v{};
    for (std::size_t i = 0; i < window; ++i) v[i] = in_.host((index / width + i / side) * pitch + index % width + i % side);
    std::nth_element(v.begin(), v.begin() + window / 2, v.end());
    return v[window / 2];
  }
  void metrics(std::string_view, Metrics& metrics) override { launched_.report(metrics); }

  void insertion_sort(Launch& launch) { filter(launch, insertion_sort_kernel, 1); }
  void selection_network(Launch& launch) { filter(launch, network_kernel, 1); }
  void shared_columns(Launch& launch) { filter(launch, columns_kernel, 4); }
  void network_from_table(Launch& launch) { filter(launch, table_kernel, 1); }

 private:
  static constexpr double selection = 174, sharing = 334.0 / 4;  // minima and maxima for a pixel
  static constexpr double lanes = 64;                            // of an SM, that compare
  Cost cost_of(double comparisons) const {
    return {.bytes = static_cast<double>(in_.bytes() + out_.bytes()),
            .seconds = seconds_on_all_sms(comparisons * static_cast<double>(out_.size()), lanes)};
  }
  void filter(Launch& launch, void (*kernel)(const float*, float*), unsigned pixels_per_thread) {
    const dim3 blocks{width / block.x / pixels_per_thread, static_cast<unsigned>(height_ / block.y)};
    launched_.launch(launch, kernel, {blocks, block}, in_, out_);
  }

  std::size_t height_;
  Input<float> in_;
  Output<float> out_;
  Residency launched_;
};

}  // namespace

extern constinit const Pair local_arrays{
    .teaches =
        "registers cannot be indexed at run time: sorting loops put an array in local memory, a fixed network keeps it in "
        "registers",
    .lesson = "selection_network",
    .make = make<LocalArrays>,
    .baseline = {.name = "insertion_sort", .run = call<&LocalArrays::insertion_sort>},
    .optimized = variants({{.name = "selection_network", .run = call<&LocalArrays::selection_network>},
                           {.name = "shared_columns", .run = call<&LocalArrays::shared_columns>}}),
    .controls = variants({{.name = "network_from_table", .run = call<&LocalArrays::network_from_table>}}),
    .bound = Bound::compute,
    .tolerance = exact,
};

}  // namespace aisp::ch08
