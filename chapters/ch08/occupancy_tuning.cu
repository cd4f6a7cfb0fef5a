// SPDX-License-Identifier: Apache-2.0
// Weights stored as 13-bit numbers of codebook rows are decoded: 2 bytes become 16. The codebook fills 128 KiB of shared memory,
// so an SM has room for one block only, whatever its size. With the customary 256 threads a quarter of the loads that memory
// needs are under way; a block of 1024 shares the same codebook, and four codes a thread have the same effect without threads.
// This codebook would be better off in the cache: the control l1_gather, which uses no shared memory, is faster than all of them.
#include <cuda_bf16.h>
#include <aisp/pair.hpp>

#include <algorithm>
#include <numeric>

#include "residency.hpp"

namespace aisp::ch08 {
namespace {

using bf16 = __nv_bfloat16;
constexpr int entries = 8192, row = 8;  // values of an entry: 16 bytes
constexpr std::size_t codebook_bytes = std::size_t{entries} * row * sizeof(bf16);
constexpr unsigned narrow = 256, wide = 1024;

// Resident blocks copy the codebook once and then take pieces of blockDim.x * codes codes in turn. All codes of a piece are
// loaded before the first result is stored: a store might change the codes that follow, for all that the compiler knows.
template <int codes>
__global__ __launch_bounds__(wide) void decode_kernel(const std::uint16_t* numbers, const uint4* codebook, uint4* out,
                                                      std::size_t count) {
  extern __shared__ uint4 book[];
  for (unsigned i = threadIdx.x; i < entries; i += blockDim.x) book[i] = codebook[i];
  __syncthreads();
  const std::size_t piece = std::size_t{blockDim.x} * codes;
  for (std::size_t first = blockIdx.x * piece + threadIdx.x; first < count; first += gridDim.x * piece) {
    unsigned number[codes];
#pragma unroll
    for (int k = 0; k < codes; ++k) number[k] = numbers[first + k * blockDim.x];
#pragma unroll
    for (int k = 0; k < codes; ++k) out[first + k * blockDim.x] = book[number[k]];
  }
}

// Full occupancy, but rows come through L1: up to 32 lines for a warp's request.
__global__ void gather_kernel(const std::uint16_t* numbers, const uint4* codebook, uint4* out) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  out[i] = codebook[numbers[i]];
}

class OccupancyTuning final : public Workload {
 public:
  explicit OccupancyTuning(Setup& setup)
      : threads_{static_cast<unsigned>(setup.size("threads"))},
        count_{setup.scaled(std::size_t{64} << 20, std::lcm<std::size_t>(4 * wide, std::size_t{4} * threads_))},
        numbers_{setup.input<std::uint16_t>(count_, integers(0, entries - 1), {.name = "codes"})},
        codebook_{setup.input<bf16>(std::size_t{entries} * row, normal(0, 1), {.name = "codebook"})},
        out_{setup.output<bf16>(count_ * row, {.name = "weights"})} {}

  Cost cost() const override { return {.bytes = static_cast<double>(numbers_.bytes() + codebook_.bytes() + out_.bytes())}; }
  double expected(std::size_t index) const override { return codebook_.host(numbers_.host(index / row) * row + index % row); }
  void metrics(std::string_view, Metrics& metrics) override { launched_.report(metrics); }

  void one_code(Launch& launch) { decode<1>(launch, threads_); }
  void wide_block(Launch& launch) { decode<1>(launch, wide); }
  void four_codes(Launch& launch) { decode<4>(launch, threads_); }
  void wide_block_4_codes(Launch& launch) { decode<4>(launch, wide); }
  void l1_gather(Launch& launch) {
    launched_.launch(launch, gather_kernel, {static_cast<unsigned>(count_ / narrow), narrow}, numbers_, rows_of(codebook_.get()),
                     rows_of(out_.get()));
  }

 private:
  static const uint4* rows_of(const bf16* values) { return reinterpret_cast<const uint4*>(values); }
  static uint4* rows_of(bf16* values) { return reinterpret_cast<uint4*>(values); }
  template <int codes>
  void decode(Launch& launch, unsigned threads) {
    const std::size_t pieces = count_ / (std::size_t{threads} * codes);
    const Grid grid{std::min(multiprocessors(), static_cast<unsigned>(pieces)), threads, codebook_bytes};
    launched_.launch(launch, decode_kernel<codes>, grid, numbers_, rows_of(codebook_.get()), rows_of(out_.get()), count_);
  }

  unsigned threads_;
  std::size_t count_;
  Input<std::uint16_t> numbers_;
  Input<bf16> codebook_;
  Output<bf16> out_;
  Residency launched_;
};

}  // namespace

extern constinit const Pair occupancy_tuning{
    .teaches =
        "when a table in shared memory leaves room for one block, that block should be large, or its threads do more at once",
    .lesson = "wide_block",
    .make = make<OccupancyTuning>,
    .baseline = {.name = "one_code", .run = call<&OccupancyTuning::one_code>},
    .optimized =
        variants({{.name = "wide_block", .run = call<&OccupancyTuning::wide_block>},
                  {.name = "four_codes", .run = call<&OccupancyTuning::four_codes>, .gains_over = "one_code"},
                  {.name = "wide_block_4_codes", .run = call<&OccupancyTuning::wide_block_4_codes>, .gains_over = "wide_block"}}),
    .controls = variants({{.name = "l1_gather", .run = call<&OccupancyTuning::l1_gather>}}),
    .bound = Bound::memory,
    .tolerance = exact,
    .sizes = sizes({{.name = "threads", .full = narrow, .multiple = 128, .most = wide, .scales = false}}),
    .sweep = cases({{"threads_128", "threads=128"},
                    {"threads_256", "threads=256"},
                    {"threads_512", "threads=512"},
                    {"threads_1024", "threads=1024"}}),
    .edges = cases({{"threads_128", "threads=128"}}),
};

}  // namespace aisp::ch08
