// SPDX-License-Identifier: Apache-2.0
// Distances from a query to 16 Mi vectors that are stored as 32 bytes each (product quantization): a byte chooses one of 256
// entries of its column of a table, 32 KiB in all, that lies in shared memory. Each block fills its table first. Blocks for 256
// codes copy four times as many bytes as they read codes; blocks that stay and take one piece after another copy once.
#include <aisp/device/vector.cuh>
#include <aisp/pair.hpp>

#include <algorithm>
#include <numeric>

#include "residency.hpp"

namespace aisp::ch08 {
namespace {

constexpr int columns = 32, entries = 256;
constexpr int threads = 256;
constexpr unsigned piece = threads;  // codes, one a thread
// Where 32 lanes read 32 of 256 words at random, the fullest bank has 3.15 different ones on average (counted in a simulation).
constexpr double wavefronts_per_lookup = 3.15;

using Bytes = device::Vector16<std::uint8_t>;
struct Code {
  Bytes halves[2];
};

__device__ void fill(float* table, const float* from) {
  const auto* quads = reinterpret_cast<const float4*>(from);
  for (int i = threadIdx.x; i < columns * entries / 4; i += threads) reinterpret_cast<float4*>(table)[i] = quads[i];
  __syncthreads();
}
__device__ Code load(const Bytes* codes, std::size_t i) { return {{codes[2 * i], codes[2 * i + 1]}}; }
__device__ float distance(const Code& code, const float* table) {
  float sum = 0;
#pragma unroll
  for (int c = 0; c < columns; ++c) sum += table[c * entries + code.halves[c / 16][c % 16]];
  return sum;
}

// A block for each `per_block` codes.
__global__ __launch_bounds__(threads, 6) void block_per_piece_kernel(const Bytes* codes, const float* from, float* out,
                                                                     unsigned per_block) {
  __shared__ alignas(16) float table[columns * entries];
  fill(table, from);
  const std::size_t first = std::size_t{blockIdx.x} * per_block;
  for (unsigned i = threadIdx.x; i < per_block; i += threads) out[first + i] = distance(load(codes, first + i), table);
}

// As many blocks as fit.
__global__ __launch_bounds__(threads, 6) void persistent_kernel(const Bytes* codes, const float* from, float* out,
                                                                std::size_t count) {
  __shared__ alignas(16) float table[columns * entries];
  fill(table, from);
  const std::size_t step = std::size_t{gridDim.x} * piece;
  for (std::size_t i = std::size_t{blockIdx.x} * piece + threadIdx.x; i < count; i += step)
    out[i] = distance(load(codes, i), table);
}

__global__ __launch_bounds__(threads, 4) void prefetch_kernel(const Bytes* codes, const float* from, float* out,
                                                              std::size_t count) {
  __shared__ alignas(16) float table[columns * entries];
  const std::size_t step = std::size_t{gridDim.x} * piece;
  std::size_t i = std::size_t{blockIdx.x} * piece + threadIdx.x;
  Code next = load(codes, i);
  fill(table, from);
  for (; i < count; i += step) {
    const Code code = next;
    if (i + step < count) next = load(codes, i + step);
    out[i] = distance(code, table);
  }
}

class PersistentBlocks final : public Workload {
 public:
  explicit PersistentBlocks(Setup& setup)
      : per_block_{setup.size("codes_per_block")},
        count_{setup.scaled(std::size_t{16} << 20, per_block_)},
        codes_{setup.input<std::uint8_t>(count_ * columns, integers(0, entries - 1), {.name = "codes"})},
        table_{setup.input<float>(std::size_t{columns} * entries, uniform(0, 1), {.name = "table"})},
        out_{setup.output<float>(count_, {.name = "distances"})} {}

  // Bytes and additions would take less time than the look-ups: a wavefront of shared memory a cycle and SM.
  Cost cost() const override {
    const double requests = static_cast<double>(count_) * columns / 32;
    return {.flops = static_cast<double>(count_) * columns,
            .bytes = static_cast<double>(codes_.bytes() + table_.bytes() + out_.bytes()),
            .seconds = seconds_on_all_sms(requests * wavefronts_per_lookup, 1)};
  }
  double expected(std::size_t index) const override {
    double sum = 0;
    for (std::size_t c = 0; c < columns; ++c) sum += table_.host(c * entries + codes_.host(index * columns + c));
    return sum;
  }
  void metrics(std::string_view, Metrics& metrics) override { launched_.report(metrics); }

  void table_per_block(Launch& launch) { in_pieces(launch, piece); }
  void coarser_blocks(Launch& launch) { in_pieces(launch, per_block_); }
  void persistent(Launch& launch) { stay(launch, persistent_kernel); }
  void persistent_prefetch(Launch& launch) { stay(launch, prefetch_kernel); }

 private:
  using Persistent = void (*)(const Bytes*, const float*, float*, std::size_t);
  const Bytes* codes() const { return reinterpret_cast<const Bytes*>(codes_.get()); }
  void in_pieces(Launch& launch, std::size_t codes_of_a_block) {
    const auto blocks = static_cast<unsigned>(count_ / codes_of_a_block);
    launched_.launch(launch, block_per_piece_kernel, {blocks, threads}, codes(), table_, out_, codes_of_a_block);
  }
  void stay(Launch& launch, Persistent kernel) {
    int resident = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, 0));
    const auto pieces = static_cast<unsigned>(count_ / piece);
    const unsigned blocks = std::min(static_cast<unsigned>(resident) * multiprocessors(), pieces);
    launched_.launch(launch, kernel, {blocks, threads}, codes(), table_, out_, count_);
  }

  std::size_t per_block_, count_;
  Input<std::uint8_t> codes_;
  Input<float> table_;
  Output<float> out_;
  Residency launched_;
};

}  // namespace

extern constinit const Pair persistent_blocks{
    .teaches =
        "every block repeats its prologue: blocks that stay and take one piece after another pay it once, larger pieces more "
        "rarely",
    .lesson = "persistent",
    .make = make<PersistentBlocks>,
    .baseline = {.name = "table_per_block", .run = call<&PersistentBlocks::table_per_block>},
    .optimized = variants({{.name = "persistent", .run = call<&PersistentBlocks::persistent>},
                           {.name = "persistent_prefetch", .run = call<&PersistentBlocks::persistent_prefetch>}}),
    .controls = variants({{.name = "coarser_blocks", .run = call<&PersistentBlocks::coarser_blocks>}}),
    .bound = Bound::memory,
    .tolerance = reduction_of(columns),
    .sizes = sizes({{.name = "codes_per_block", .full = 4096, .multiple = piece, .most = 1u << 20, .scales = false}}),
    .sweep = cases({{"codes_256", "codes_per_block=256"},
                    {"codes_512", "codes_per_block=512"},
                    {"codes_1024", "codes_per_block=1024"},
                    {"codes_4096", "codes_per_block=4096"},
                    {"codes_16384", "codes_per_block=16384"}}),
    .edges = cases({{"codes_per_block_256", "codes_per_block=256"}, {"codes_per_block_1792", "codes_per_block=1792"}}),
};

}  // namespace aisp::ch08
