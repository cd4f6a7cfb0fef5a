// SPDX-License-Identifier: Apache-2.0
// Rows of 128 bytes, taken from a table in random order, as an embedding layer reads them. The address of a row is known only
// when its index has come: two latencies one after the other, during which a warp that takes one row has nothing but that row on
// its way. A warp that loads 32 indices with one access pays the first latency once and requests many rows before it waits again.
#include <cuda_bf16.h>
#include <aisp/device/reduce.cuh>
#include <aisp/pair.hpp>

#include <cub/device/device_memcpy.cuh>
#include <cub/device/device_transform.cuh>

#include <bit>
#include <cstddef>
#include <iterator>

namespace aisp::ch07 {
namespace {

using bf16 = __nv_bfloat16;
constexpr int warps = 8, threads = warps * 32;
constexpr int in_flight = 8;                    // loads of a lane before its first store
constexpr std::size_t rows_per_block = 32 * 8;  // of the kernels whose warps take 32 rows
constexpr std::size_t most_row_bytes = 8192;

// A lane has a word of the row, or several where rows are longer than 128 bytes.
__global__ __launch_bounds__(threads) void row_per_warp_kernel(const unsigned* table, const unsigned* indices, unsigned* out,
                                                               unsigned row_words) {
  const std::size_t row = std::size_t{blockIdx.x} * warps + threadIdx.x / 32;
  const unsigned* from = table + std::size_t{indices[row]} * row_words;
  for (unsigned word = threadIdx.x % 32; word < row_words; word += 32) out[row * row_words + word] = from[word];
}

__global__ __launch_bounds__(threads) void batched_indices_kernel(const unsigned* table, const unsigned* indices, unsigned* out,
                                                                  unsigned row_words) {
  const unsigned lane = threadIdx.x % 32;
  const std::size_t first = std::size_t{blockIdx.x} * rows_per_block + threadIdx.x / 32 * 32;
  const unsigned index = indices[first + lane];
  for (unsigned word = lane; word - lane < row_words; word += 32)
    for (int batch = 0; batch < 32; batch += in_flight) {
      unsigned loaded[in_flight];
#pragma unroll
      for (int k = 0; k < in_flight; ++k) {
        const std::size_t row = __shfl_sync(device::whole_warp, index, batch + k);
        if (word < row_words) loaded[k] = table[row * row_words + word];
      }
#pragma unroll
      for (int k = 0; k < in_flight; ++k)
        if (word < row_words) out[(first + batch + k) * row_words + word] = loaded[k];
    }
}

// The 32 rows of a warp are one run of vectors: with rows of 128 bytes, lanes 0 to 7 take the first of four rows, and eight
// loads of a lane cover all 32. A row has 2^vector_bits vectors.
__global__ __launch_bounds__(threads) void eight_lanes_kernel(const uint4* table, const unsigned* indices, uint4* out,
                                                              unsigned vector_bits) {
  const unsigned lane = threadIdx.x % 32, vectors = 32u << vector_bits;
  const std::size_t first = std::size_t{blockIdx.x} * rows_per_block + threadIdx.x / 32 * 32;
  const unsigned index = indices[first + lane];
  uint4* to = out + (first << vector_bits);
  for (unsigned batch = 0; batch < vectors; batch += in_flight * 32) {
    uint4 loaded[in_flight];
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      const unsigned vector = batch + k * 32 + lane;
      const std::size_t row = __shfl_sync(device::whole_warp, index, static_cast<int>(vector >> vector_bits));
      if (vector < vectors) loaded[k] = table[(row << vector_bits) + (vector & ((1u << vector_bits) - 1))];
    }
#pragma unroll
    for (int k = 0; k < in_flight; ++k)
      if (batch + k * 32 + lane < vectors) to[batch + k * 32 + lane] = loaded[k];
  }
}

// The iterators for CUB's copy of many buffers: the i-th's beginning, on either side, and its length.
template <class Value, class Make>
struct Computed {
  using iterator_category = std::random_access_iterator_tag;
  using value_type = Value;
  using difference_type = std::ptrdiff_t;
  using pointer = const Value*;
  using reference = Value;
  Make make;
  std::ptrdiff_t first = 0;
  __host__ __device__ Value operator*() const { return make(first); }
  __host__ __device__ Computed operator+(std::ptrdiff_t i) const { return {make, first + i}; }
  __host__ __device__ Value operator[](std::ptrdiff_t i) const { return make(first + i); }
};
struct RowOfTable {
  const std::byte* table;
  const unsigned* indices;
  unsigned row_bytes;
  __host__ __device__ const void* operator()(std::ptrdiff_t i) const { return table + std::size_t{indices[i]} * row_bytes; }
};
struct RowOfOutput {
  std::byte* out;
  unsigned row_bytes;
  __host__ __device__ void* operator()(std::ptrdiff_t i) const { return out + i * row_bytes; }
};
struct RowBytes {
  unsigned row_bytes;
  __host__ __device__ unsigned operator()(std::ptrdiff_t) const { return row_bytes; }
};

// A row as thrust::gather copies it: a thread fetches the whole of it.
struct alignas(16) Row {
  uint4 vectors[8];
};
struct Fetch {
  const Row* table;
  __host__ __device__ Row operator()(unsigned index) const { return table[index]; }
};

class Gather final : public Workload {
 public:
  explicit Gather(Setup& setup)
      : row_bytes_{setup.size("row_bytes")},
        row_elements_{row_bytes_ / sizeof(bf16)},
        rows_{setup.scaled(std::size_t{1} << 30, rows_per_block * most_row_bytes) / row_bytes_},
        table_rows_{2 * rows_},
        table_{setup.input<bf16>(table_rows_ * row_elements_, uniform(-1, 1), {.name = "table"})},
        indices_{setup.input<unsigned>(rows_, integers(0, static_cast<std::int64_t>(table_rows_) - 1), {.name = "indices"})},
        in_order_{setup.input<unsigned>(rows_, sequence(), {.name = "indices in order"})},
        out_{setup.output<bf16>(rows_ * row_elements_, {.name = "rows"})},
        cub_bytes_{cub_copy(nullptr, 0, nullptr)},
        cub_space_{setup.scratch<std::uint8_t>(cub_bytes_)} {
    if (!std::has_single_bit(row_bytes_)) throw Unsupported{"row_bytes must be a power of two"};
  }

  // The table's traffic is that of the rows asked for.
  Cost cost() const override { return {.bytes = static_cast<double>(2 * out_.bytes() + indices_.bytes())}; }
  double expected(std::size_t i) const override {
    return table_.host(indices_.host(i / row_elements_) * row_elements_ + i % row_elements_);
  }

  void row_per_warp(Launch& launch) { one_by_one(launch, indices_); }
  void batched_indices(Launch& launch) {
    launch(batched_indices_kernel, {blocks(), threads}, words(table_.get()), indices_, words(out_.get()), row_bytes_ / 4);
  }
  void eight_lanes(Launch& launch) { in_vectors(launch, indices_); }
  void row_per_warp_in_order(Launch& launch) { one_by_one(launch, in_order_); }
  void eight_lanes_in_order(Launch& launch) { in_vectors(launch, in_order_); }
  void cub_transform(Launch& launch) {
    if (row_bytes_ != sizeof(Row)) throw Unsupported{"compiled for rows of 128 bytes"};
    check(cub::DeviceTransform::Transform(indices_.get(), reinterpret_cast<Row*>(out_.get()), static_cast<int>(rows_),
                                          Fetch{reinterpret_cast<const Row*>(table_.get())}, launch.stream));
  }
  void cub_batched_copy(Launch& launch) { cub_copy(cub_space_, cub_bytes_, launch.stream); }

 private:
  unsigned blocks() const { return static_cast<unsigned>(rows_ / rows_per_block); }
  static const unsigned* words(const bf16* p) { return reinterpret_cast<const unsigned*>(p); }
  static unsigned* words(bf16* p) { return reinterpret_cast<unsigned*>(p); }

  void one_by_one(Launch& launch, const unsigned* indices) {
    launch(row_per_warp_kernel, {static_cast<unsigned>(rows_ / warps), threads}, words(table_.get()), indices, words(out_.get()),
           row_bytes_ / 4);
  }
  void in_vectors(Launch& launch, const unsigned* indices) {
    launch(eight_lanes_kernel, {blocks(), threads}, reinterpret_cast<const uint4*>(table_.get()), indices,
           reinterpret_cast<uint4*>(out_.get()), std::countr_zero(row_bytes_ / sizeof(uint4)));
  }
  // Returns the workspace that it needs; does nothing else when there is none.
  std::size_t cub_copy(void* space, std::size_t bytes, cudaStream_t stream) {
    const auto row_bytes = static_cast<unsigned>(row_bytes_);
    using From = Computed<const void*, RowOfTable>;
    using To = Computed<void*, RowOfOutput>;
    using Length = Computed<unsigned, RowBytes>;
    check(cub::DeviceMemcpy::Batched(space, bytes, From{{reinterpret_cast<const std::byte*>(table_.get()), indices_, row_bytes}},
                                     To{{reinterpret_cast<std::byte*>(out_.get()), row_bytes}}, Length{{row_bytes}},
                                     static_cast<std::int64_t>(rows_), stream));
    return bytes;
  }

  std::size_t row_bytes_, row_elements_, rows_, table_rows_;
  Input<bf16> table_;
  Input<unsigned> indices_, in_order_;
  Output<bf16> out_;
  std::size_t cub_bytes_;
  Scratch<std::uint8_t> cub_space_;
};

}  // namespace

extern constinit const Pair gather{
    .teaches = "an index, then its row: two latencies in series; 32 indices at once keep many rows on their way",
    .lesson = "batched_indices",
    .make = make<Gather>,
    .baseline = {.name = "row_per_warp", .run = call<&Gather::row_per_warp>},
    .optimized = variants({{.name = "batched_indices", .run = call<&Gather::batched_indices>},
                           {.name = "eight_lanes", .run = call<&Gather::eight_lanes>}}),
    .controls = variants({{.name = "row_per_warp_in_order", .run = call<&Gather::row_per_warp_in_order>, .outputs = no_outputs},
                          {.name = "eight_lanes_in_order", .run = call<&Gather::eight_lanes_in_order>, .outputs = no_outputs}}),
    .libraries = variants({{.name = "cub_transform", .run = call<&Gather::cub_transform>},
                           {.name = "cub_batched_copy", .run = call<&Gather::cub_batched_copy>}}),
    .bound = Bound::memory,
    .tolerance = exact,
    .sizes = sizes({{.name = "row_bytes", .full = 128, .multiple = 32, .most = most_row_bytes, .scales = false}}),
    .sweep = cases({{"bytes_32", "row_bytes=32"},
                    {"bytes_64", "row_bytes=64"},
                    {"bytes_128", "row_bytes=128"},
                    {"bytes_256", "row_bytes=256"},
                    {"bytes_512", "row_bytes=512"},
                    {"bytes_2048", "row_bytes=2048"},
                    {"bytes_8192", "row_bytes=8192"}}),
    .edges = cases({{"row_bytes_32", "row_bytes=32"}}),
};

}  // namespace aisp::ch07
