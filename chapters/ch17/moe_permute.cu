// SPDX-License-Identifier: Apache-2.0
// Tokens put in the order of their experts, each once for each of its eight. An argsort of the choices and a gather in its order
// is what frameworks do: a general sort of keys of six bits, and each row is fetched eight times, long after it has left L2. A
// counting pass gives every slot its row, and a block that has a token writes it to all its places.
#include <cuda_bf16.h>
#include <aisp/dispatch.hpp>
#include <aisp/pair.hpp>

#include <cub/device/device_radix_sort.cuh>

#include <bit>
#include <string_view>
#include <vector>

#include "moe/index.cuh"
#include "moe/routing.hpp"

namespace aisp::ch17 {
namespace {

using bf16 = __nv_bfloat16;
constexpr int threads = 256;

// After the sort: where each expert's rows begin, and the row of each slot.
__global__ __launch_bounds__(threads) void offsets_kernel(const int* sorted_experts, const int* slot_of_row, int* offsets,
                                                          int* row_of_slot, int rows, int experts) {
  const int row = static_cast<int>(blockIdx.x * threads + threadIdx.x);
  if (row >= rows) return;
  row_of_slot[slot_of_row[row]] = row;
  const int expert = sorted_experts[row];
  for (int e = row == 0 ? 0 : sorted_experts[row - 1] + 1; e <= expert; ++e) offsets[e] = row;
  if (row == rows - 1)
    for (int e = expert + 1; e <= experts; ++e) offsets[e] = rows;
}

// A block for each row of the result. 16 bytes a thread at a time.
__global__ __launch_bounds__(threads) void gather_kernel(const uint4* tokens, const int* slot_of_row, uint4* rows, int top_k,
                                                         int packets) {
  const std::size_t token = static_cast<std::size_t>(slot_of_row[blockIdx.x] / top_k);
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += threads)
    rows[std::size_t{blockIdx.x} * packets + i] = tokens[token * packets + i];
}

// A block for each token: it is read once.
template <int top_k>
__global__ __launch_bounds__(threads) void token_major_kernel(const uint4* tokens, moe::Slots at, int* slot_of_row,
                                                              int* row_of_slot, uint4* rows, int packets) {
  __shared__ int places[top_k];
  if (threadIdx.x < top_k) {
    const int slot = static_cast<int>(blockIdx.x) * top_k + static_cast<int>(threadIdx.x), row = moe::row_of(at, slot);
    places[threadIdx.x] = row;
    slot_of_row[row] = slot;
    row_of_slot[slot] = row;
  }
  __syncthreads();
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += threads) {
    const uint4 packet = tokens[std::size_t{blockIdx.x} * packets + i];
#pragma unroll
    for (int k = 0; k < top_k; ++k) rows[static_cast<std::size_t>(places[k]) * packets + i] = packet;
  }
}

class MoePermute final : public Workload {
 public:
  explicit MoePermute(Setup& setup)
      : tokens_{setup.size("tokens")},
        hidden_{setup.size("hidden")},
        experts_{setup.size("experts")},
        top_k_{setup.size("top_k")},
        slots_{tokens_ * top_k_},
        x_{setup.input<bf16>(tokens_ * hidden_, normal(0, 1), {.name = "tokens"})},
        experts_of_{setup.input<int>(
            slots_,
            moe::expert_choices(
                {.experts = experts_, .top_k = top_k_, .routing = static_cast<moe::Routing>(setup.size("routing"))}),
            {.name = "experts of slots", .constant = true})},
        numbers_{setup.input<int>(slots_, sequence(), {.name = "numbers of slots", .constant = true})},
        rows_{setup.output<bf16>(slots_ * hidden_, {.name = "rows"})},
        offsets_{setup.output<int>(experts_ + 1, {.name = "offsets"})},
        slot_of_row_{setup.output<int>(slots_, {.name = "slots of rows"})},
        row_of_slot_{setup.output<int>(slots_, {.name = "rows of slots"})},
        sorted_{setup.scratch<int>(slots_)},
        ranks_{setup.scratch<int>(slots_)},
        starts_{setup.scratch<int>(experts_ * tiles())},
        done_{setup.scratch<unsigned>(1)},
        known_{setup.scratch<int>(slots_)},
        cub_bytes_{cub_sort(nullptr, 0, nullptr)},
        cub_space_{setup.scratch<std::uint8_t>(cub_bytes_)} {
    if (top_k_ > experts_ || experts_ > moe::most_experts) throw Unsupported{"a token chooses among 512 experts at most"};
  }

  // Tokens and choices are read once, rows and both maps are written once.
  Cost cost() const override {
    return {.bytes = static_cast<double>(x_.bytes() + experts_of_.bytes() + rows_.bytes() + offsets_.bytes() +
                                         slot_of_row_.bytes() + row_of_slot_.bytes())};
  }
  void compute_reference(Launch&) override {
    std::vector<int> experts_of(slots_);
    for (std::size_t slot = 0; slot < slots_; ++slot) experts_of[slot] = experts_of_.host(slot);
    grouped_ = moe::group_by_expert(experts_of, experts_);
  }
  double expected_output(int output, std::size_t i) const override {
    if (output == 1) return grouped_.offsets[i];
    if (output == 2) return grouped_.slot_of_row[i];
    if (output == 3) return grouped_.row_of_slot[i];
    const std::size_t token = static_cast<std::size_t>(grouped_.slot_of_row[i / hidden_]) / top_k_;
    return x_.host(token * hidden_ + i % hidden_);
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("token rate", static_cast<double>(tokens_), "tokens/s");
  }

  void argsort_gather(Launch& launch) {
    cub_sort(cub_space_, cub_bytes_, launch.stream);
    launch(offsets_kernel, {static_cast<unsigned>((slots_ + threads - 1) / threads), threads}, sorted_, slot_of_row_, offsets_,
           row_of_slot_, slots_, experts_);
    gather(launch, slot_of_row_);
  }
  void counting_sort(Launch& launch) {
    rank(launch);
    launch(moe::place_slots_kernel, ranking(), slots(), slot_of_row_, row_of_slot_);
    gather(launch, slot_of_row_);
  }
  void token_major(Launch& launch) {
    rank(launch);
    dispatch<1, 2, 4, 6, 8>("top_k", top_k_, [&]<int top_k>() {
      launch(token_major_kernel<top_k>, {static_cast<unsigned>(tokens_), threads}, tokens(), slots(), slot_of_row_, row_of_slot_,
             rows(), packets());
    });
  }
  // The sort's result, in a place of its own, is there before.
  void sort_before(Launch& launch) {
    clear_done(launch);
    cub_sort(cub_space_, cub_bytes_, launch.stream);
    check(cudaMemcpyAsync(known_, slot_of_row_, known_.bytes(), cudaMemcpyDeviceToDevice, launch.stream));
  }
  void gather_alone(Launch& launch) { gather(launch, known_); }
  void clear_done(Launch& launch) { check(cudaMemsetAsync(done_, 0, done_.bytes(), launch.stream)); }

 private:
  std::size_t tiles() const { return (slots_ + moe::tile_slots - 1) / moe::tile_slots; }
  Grid ranking() const { return {static_cast<unsigned>(tiles()), moe::tile_slots}; }
  moe::Slots slots() const {
    return {experts_of_, static_cast<int>(slots_), static_cast<int>(experts_), ranks_, starts_, offsets_, done_};
  }
  const uint4* tokens() const { return reinterpret_cast<const uint4*>(x_.get()); }
  uint4* rows() const { return reinterpret_cast<uint4*>(rows_.get()); }
  int packets() const { return static_cast<int>(hidden_ * sizeof(bf16) / sizeof(uint4)); }
  void rank(Launch& launch) { launch(moe::rank_slots_kernel, ranking(), slots()); }
  void gather(Launch& launch, const int* slot_of_row) {
    launch(gather_kernel, {static_cast<unsigned>(slots_), threads}, tokens(), slot_of_row, rows(), top_k_, packets());
  }
  // Returns the workspace that it needs; does nothing else when there is none.
  std::size_t cub_sort(void* space, std::size_t bytes, cudaStream_t stream) {
    check(cub::DeviceRadixSort::SortPairs(space, bytes, experts_of_.get(), sorted_.get(), numbers_.get(), slot_of_row_.get(),
                                          static_cast<int>(slots_), 0, std::bit_width(experts_ - 1), stream));
    return bytes;
  }

  std::size_t tokens_, hidden_, experts_, top_k_, slots_;
  Input<bf16> x_;
  Input<int> experts_of_, numbers_;
  Output<bf16> rows_;
  Output<int> offsets_, slot_of_row_, row_of_slot_;
  Scratch<int> sorted_, ranks_, starts_;
  Scratch<unsigned> done_;
  Scratch<int> known_;  // slots of rows, of the control
  std::size_t cub_bytes_;
  Scratch<std::uint8_t> cub_space_;
  moe::Grouped grouped_;
};

}  // namespace

extern constinit const Pair moe_permute{
    .teaches = "rows reach their experts by a counting pass and one read of each token: no sort, and no row fetched eight times",
    .lesson = "token_major",
    .make = make<MoePermute>,
    .baseline = {.name = "argsort_gather", .run = call<&MoePermute::argsort_gather>},
    .optimized = variants({{.name = "counting_sort",
                            .run = call<&MoePermute::counting_sort>,
                            .prepare = call<&MoePermute::clear_done>,
                            .same_bits_as = "argsort_gather"},
                           {.name = "token_major",
                            .run = call<&MoePermute::token_major>,
                            .prepare = call<&MoePermute::clear_done>,
                            .same_bits_as = "argsort_gather"}}),
    .controls = variants({{.name = "gather_alone",
                           .run = call<&MoePermute::gather_alone>,
                           .prepare = call<&MoePermute::sort_before>,
                           .outputs = no_outputs}}),
    .bound = Bound::memory,
    .tolerance = exact,
    .sizes = sizes({{.name = "tokens", .full = 8192, .most = 1u << 16},
                    {.name = "hidden", .full = 4096, .multiple = 8, .most = 16384, .scales = false},
                    {.name = "experts", .full = 64, .most = 512, .scales = false},
                    {.name = "top_k", .full = 8, .most = 8, .scales = false},
                    {.name = "routing", .full = 0, .least = 0, .most = 3, .scales = false}}),
    .sweep = cases({{"tokens_16", "tokens=16"},
                    {"tokens_128", "tokens=128"},
                    {"tokens_1024", "tokens=1024"},
                    {"tokens_8192", "tokens=8192"},
                    {"published_top_2", "tokens=4096,experts=8,top_k=2"}}),
    .edges = cases({{"one_token", "tokens=1"},
                    {"tail", "tokens=8191,hidden=72"},
                    {"zipf", "tokens=2048,hidden=64,routing=1"},
                    {"planted", "tokens=2048,hidden=64,routing=2"},
                    {"same_experts", "tokens=2048,hidden=64,routing=3"},
                    {"one_expert", "tokens=1500,hidden=64,top_k=1,routing=3"},
                    {"experts_512", "tokens=700,hidden=64,experts=512,top_k=6"}}),
};

}  // namespace aisp::ch17
