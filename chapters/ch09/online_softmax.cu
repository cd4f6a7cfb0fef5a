// SPDX-License-Identifier: Apache-2.0
// Softmax of rows of 65,536 bf16. The definition takes three passes over a row: its maximum, the sum of exponentials relative to
// it, and the results. A sum can be taken relative to the maximum so far, and lowered when that is outgrown: two passes. A row
// that fits into the registers of a cluster of blocks is read once, but the blocks must meet for it. Exponentials are to base 2
// in all variants, so that passes are all that changes.
#include <cuda_bf16.h>
#include <aisp/device/cluster.cuh>
#include <aisp/opened.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "cudnn_softmax.hpp"
#include "row_cache.hpp"
#include "rows.cuh"

namespace aisp::ch09 {
namespace {

using shared::bf16, shared::packet;

constexpr unsigned most_threads = 1024, warp = 32;
constexpr unsigned held = 4;  // packets of a row that a thread has, or has in flight

// Calls use(index, elements) for the packets of a row that are this thread's, four loads at a time.
template <class Use>
__device__ __forceinline__ void for_packets(const uint4* __restrict__ row, unsigned count, Use use) {
  for (unsigned first = threadIdx.x; first < count; first += held * blockDim.x) {
    uint4 loaded[held];
#pragma unroll
    for (unsigned k = 0; k < held; ++k)
      if (first + k * blockDim.x < count) loaded[k] = row[first + k * blockDim.x];
#pragma unroll
    for (unsigned k = 0; k < held; ++k)
      if (first + k * blockDim.x < count) {
        float x[packet];
        shared::unpack(loaded[k], x);
        use(first + k * blockDim.x, x);
      }
  }
}

__device__ __forceinline__ void write_exponentials(const uint4* __restrict__ from, uint4* __restrict__ to, unsigned count,
                                                   float offset, float factor) {
  for_packets(from, count, [&](unsigned i, float(&x)[packet]) {
#pragma unroll
    for (float& value : x) value = shared::exponential(value, offset) * factor;
    to[i] = shared::pack(x);
  });
}

__global__ __launch_bounds__(most_threads) void three_pass_kernel(const uint4* __restrict__ in, uint4* __restrict__ out,
                                                                  unsigned row_packets) {
  __shared__ float parts[device::largest_block_in_warps];
  const uint4* const from = in + std::size_t{blockIdx.x} * row_packets;
  float maximum = shared::minus_infinity(), sum = 0;
  for_packets(from, row_packets, [&](unsigned, float(&x)[packet]) { maximum = fmaxf(maximum, shared::maximum_of(x)); });
  maximum = device::block_max(maximum, shared::minus_infinity(), parts);
  const float offset = shared::level(maximum) * shared::log2_e;
  for_packets(from, row_packets, [&](unsigned, float(&x)[packet]) {
#pragma unroll
    for (const float value : x) sum += shared::exponential(value, offset);
  });
  sum = device::block_sum(sum, parts);
  write_exponentials(from, out + std::size_t{blockIdx.x} * row_packets, row_packets, offset, 1 / sum);
}

__global__ __launch_bounds__(most_threads) void two_pass_kernel(const uint4* __restrict__ in, uint4* __restrict__ out,
                                                                unsigned row_packets) {
  __shared__ shared::MaxSum parts[device::largest_block_in_warps];
  const uint4* const from = in + std::size_t{blockIdx.x} * row_packets;
  shared::MaxSum seen = shared::nothing_seen();
  for_packets(from, row_packets, [&](unsigned, float(&x)[packet]) { shared::add(seen, x); });
  seen = shared::block_merge(seen, parts);
  write_exponentials(from, out + std::size_t{blockIdx.x} * row_packets, row_packets, shared::level(seen.maximum) * shared::log2_e,
                     1 / seen.sum);
}

// Merges the blocks of a cluster, each with a slice of the row.
__device__ __forceinline__ shared::MaxSum cluster_merge(const shared::MaxSum& own, shared::MaxSum* shared) {
  if (threadIdx.x == 0) *shared = own;
  device::cluster_sync();
  const unsigned lane = threadIdx.x % warp, ranks = device::cluster_size();
  const shared::MaxSum all = shared::warp_merge(lane < ranks ? *device::remote_pointer(shared, lane) : shared::nothing_seen());
  device::cluster_sync();  // nobody ends whose sums others may still read
  return all;
}

// A block has slice_packets of a row, or all of it. A thread takes exponentials relative to the maximum of its own elements; what
// they are off by is one factor in the end.
template <bool in_cluster>
__global__ __launch_bounds__(most_threads) void registers_kernel(const uint4* __restrict__ in, uint4* __restrict__ out,
                                                                 unsigned slice_packets) {
  __shared__ shared::MaxSum parts[device::largest_block_in_warps], of_block;
  const std::size_t slice = std::size_t{blockIdx.x} * slice_packets;
  uint4 loaded[held];
#pragma unroll
  for (unsigned k = 0; k < held; ++k)
    if (threadIdx.x + k * blockDim.x < slice_packets) loaded[k] = in[slice + threadIdx.x + k * blockDim.x];
    else loaded[k] = make_uint4(0xFF80FF80u, 0xFF80FF80u, 0xFF80FF80u, 0xFF80FF80u);  // -infinity
  float x[held][packet];
  shared::MaxSum own = shared::nothing_seen();
#pragma unroll
  for (unsigned k = 0; k < held; ++k) {
    shared::unpack(loaded[k], x[k]);
    own.maximum = fmaxf(own.maximum, shared::maximum_of(x[k]));
  }
  const float offset = shared::level(own.maximum) * shared::log2_e;
#pragma unroll
  for (unsigned k = 0; k < held; ++k)
#pragma unroll
    for (float& value : x[k]) own.sum += value = shared::exponential(value, offset);
  shared::MaxSum all = shared::block_merge(own, parts);
  if constexpr (in_cluster) all = cluster_merge(all, &of_block);
  const float factor = shared::sum_at({own.maximum, 1}, all.maximum) / all.sum;
#pragma unroll
  for (unsigned k = 0; k < held; ++k) {
#pragma unroll
    for (float& value : x[k]) value *= factor;
    if (threadIdx.x + k * blockDim.x < slice_packets) out[slice + threadIdx.x + k * blockDim.x] = shared::pack(x[k]);
  }
}

class OnlineSoftmax final : public Workload {
 public:
  explicit OnlineSoftmax(Setup& setup)
      : columns_{setup.size("columns")},
        rows_{std::max<std::size_t>(setup.size("elements") / columns_, 1)},
        in_{setup.input<bf16>(rows_ * columns_, scores(), {.name = "scores"})},
        out_{setup.output<bf16>(rows_ * columns_, {.name = "probabilities", .groups = Axis{columns_, rows_}})},
        cudnn_{setup} {}

  Cost cost() const override {
    const auto elements = static_cast<double>(in_.size());
    return {.flops = 4 * elements, .bytes = static_cast<double>(in_.bytes() + out_.bytes()), .special_functions = elements};
  }
  void compute_reference(Launch&) override { reference_.forget(rows_); }
  double expected(std::size_t i) const override {
    const std::size_t row = i / columns_;
    const Row& of = reference_.of(row, [&] {
      Row result;
      for (std::size_t k = row * columns_; k < (row + 1) * columns_; ++k) result.maximum = std::max(result.maximum, in_.host(k));
      for (std::size_t k = row * columns_; k < (row + 1) * columns_; ++k) result.sum += std::exp(in_.host(k) - result.maximum);
      return result;
    });
    return std::exp(in_.host(i) - of.maximum) / of.sum;
  }
  // Probabilities of a row add up to one, but for their rounding.
  void validate(std::string_view) override {
    std::vector<bf16> row(columns_);
    for (std::size_t i = 0; i < std::min(rows_, looked_at); ++i) {
      const std::size_t which = i * rows_ / std::min(rows_, looked_at);
      check(cudaMemcpy(row.data(), out_.get() + which * columns_, columns_ * sizeof(bf16), cudaMemcpyDeviceToHost));
      double sum = 0;
      for (const bf16 value : row) sum += static_cast<double>(__bfloat162float(value));
      if (!(std::abs(sum - 1) < 1e-2))
        throw std::runtime_error{"row " + std::to_string(which) + " adds up to " + std::to_string(sum) + " instead of 1"};
    }
  }

  void three_passes(Launch& launch) { launch_blocks(launch, three_pass_kernel, columns_, {}); }
  void online_two_pass(Launch& launch) { launch_blocks(launch, two_pass_kernel, columns_, {}); }
  // Small blocks, so that an SM has several rows or slices in different stages: a block for a row of up to 8192 elements, and for
  // a longer one as many as a cluster may have.
  void row_in_registers(Launch& launch) {
    constexpr std::size_t slice = 8192, most_ranks = 8;
    std::size_t ranks = 1;
    while (ranks < most_ranks && columns_ > ranks * slice && columns_ % (2 * ranks * packet) == 0) ranks *= 2;
    if (columns_ > ranks * most_threads * held * packet)
      throw Unsupported{"a row of " + std::to_string(columns_) + " elements does not fit into the registers of " +
                        std::to_string(ranks) + " blocks"};
    if (ranks == 1) launch_blocks(launch, registers_kernel<false>, columns_, {});
    else launch_blocks(launch, registers_kernel<true>, columns_ / ranks, dim3{static_cast<unsigned>(ranks)});
  }
  void cudnn_softmax(Launch& launch) { cudnn_->run(launch.stream, rows_, columns_, in_.get(), out_.get()); }

 private:
  static constexpr std::size_t looked_at = 64;  // rows that are added up
  struct Row {
    double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
  };

  // Among the rows: all elements equal; rising, so that the maximum is outgrown again and again; a large one close to the end;
  // -infinity in the first half.
  Pattern scores() const {
    const Axis rows{columns_, rows_}, columns{1, columns_};
    const auto some = [&] { return drawn(rows, rows_ / 16 + 1); };
    return normal(0, 2)
        .set(1, some())
        .plus_steps(1, std::max<std::size_t>(columns_ / 64, 1), all_of(columns), some())
        .set(60, at(columns, columns_ - 3), some())
        .set(-std::numeric_limits<float>::infinity(), at(columns, 0, columns_ / 2), some());
  }
  // A block for each `elements`: a row, or the slice of a row that a block of a cluster has.
  template <class Kernel>
  void launch_blocks(Launch& launch, Kernel kernel, std::size_t elements, dim3 cluster) {
    const auto packets = static_cast<unsigned>(elements / packet);
    const unsigned threads = std::min((packets + held * warp - 1) / (held * warp) * warp, most_threads);
    launch(kernel, {.blocks = static_cast<unsigned>(in_.size() / elements), .threads = threads, .cluster = cluster},
           reinterpret_cast<const uint4*>(in_.get()), reinterpret_cast<uint4*>(out_.get()), packets);
  }

  std::size_t columns_, rows_;
  Input<bf16> in_;
  Output<bf16> out_;
  Opened<shared::CudnnSoftmax> cudnn_;
  shared::RowCache<Row> reference_;
};

}  // namespace

extern constinit const Pair online_softmax{
    .teaches =
        "a running maximum and sum need one pass over a row instead of two; a cluster that holds a row needs no second one, "
        "but its blocks must meet",
    .lesson = "online_two_pass",
    .make = make<OnlineSoftmax>,
    .baseline = {.name = "three_passes", .run = call<&OnlineSoftmax::three_passes>},
    .optimized =
        variants({{.name = "online_two_pass", .run = call<&OnlineSoftmax::online_two_pass>, .kernels = {.local_bytes = 0}},
                  {.name = "row_in_registers", .run = call<&OnlineSoftmax::row_in_registers>, .kernels = {.local_bytes = 0}}}),
    .libraries = variants({{.name = "cudnn_softmax",
                            .run = call<&OnlineSoftmax::cudnn_softmax>,
                            .needs = {.libraries = {Library::cudnn}},
                            .tolerance = shared::cudnn_softmax_rows}}),
    .bound = Bound::memory,
    // Each row by itself has one rounding to bf16, which is 2e-3 where a row has one large element.
    .tolerance = within(4e-3),
    .sizes = sizes({{.name = "elements", .full = 16384 * 8192, .multiple = packet, .most = 1u << 30},
                    {.name = "columns", .full = 65536, .multiple = packet, .most = 1 << 20, .scales = false}}),
    .sweep = cases({{"columns_1024", "columns=1024"},
                    {"columns_8192", "columns=8192"},
                    {"columns_32768", "columns=32768"},
                    {"columns_65536", "columns=65536"},
                    {"columns_131072", "columns=131072"},
                    {"columns_1048576", "columns=1048576"}}),
    .edges = cases({{"one_packet", "elements=8,columns=8"},
                    {"odd_columns", "elements=37000,columns=1000"},
                    {"last_packet_alone", "elements=6168,columns=2056"},
                    {"two_slices", "elements=81600,columns=16320"},
                    {"large_slices", "elements=393408,columns=131136"},
                    {"longer_than_registers", "elements=98328,columns=32776"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch09
