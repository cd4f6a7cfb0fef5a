// SPDX-License-Identifier: Apache-2.0
// The results of a token's eight experts, weighted and added up. In the order of the experts this is a scatter: an output is
// visited eight times, long apart, and every visit is an atomic addition in fp32 to memory that must be cleared first and rounded
// to bf16 after. Turned around it is a gather (moe/combine.cuh): a block reads a token's eight rows and writes its output once.
#include <cuda_bf16.h>
#include <aisp/device/vector.cuh>
#include <aisp/dispatch.hpp>
#include <aisp/pair.hpp>

#include <limits>
#include <string_view>
#include <vector>

#include "moe/combine.cuh"
#include "moe/routing.hpp"

namespace aisp::ch17 {
namespace {

using shared::bf16, shared::packet;
constexpr int threads = 256;
constexpr std::size_t drop_every = 512;  // of the slots, one is dropped, as where an expert had no room

// Adds `count` neighbours of a row, times the slot's weight, to the token's sums; lanes stand side by side.
template <int count>
__device__ void add_row(const bf16* row, float weight, float* to, int hidden) {
  for (int i = static_cast<int>(threadIdx.x) * count; i < hidden; i += threads * count) {
    if constexpr (count == 1) atomicAdd(to + i, __bfloat162float(row[i]) * weight);
    else {
      const uint2 four = *reinterpret_cast<const uint2*>(row + i);
      device::add_to_global(to + i, __uint_as_float(four.x << 16) * weight, __uint_as_float(four.x & 0xFFFF0000u) * weight,
                            __uint_as_float(four.y << 16) * weight, __uint_as_float(four.y & 0xFFFF0000u) * weight);
    }
  }
}

// A block for each row, in the order of the experts; a row without a slot is not read.
template <int count>
__global__ __launch_bounds__(threads) void scatter_kernel(const bf16* rows, const int* slot_of_row, const float* weights,
                                                          float* sums, int top_k, int hidden) {
  const int slot = slot_of_row[blockIdx.x];
  if (slot < 0) return;
  add_row<count>(rows + std::size_t{blockIdx.x} * hidden, weights[slot], sums + static_cast<std::size_t>(slot / top_k) * hidden,
                 hidden);
}
// A block for each slot, in the order of the tokens.
__global__ __launch_bounds__(threads) void scatter_in_token_order_kernel(const bf16* rows, const int* row_of_slot,
                                                                         const float* weights, float* sums, int top_k,
                                                                         int hidden) {
  const int row = row_of_slot[blockIdx.x];
  if (row < 0) return;
  add_row<1>(rows + static_cast<std::size_t>(row) * hidden, weights[blockIdx.x], sums + std::size_t{blockIdx.x / top_k} * hidden,
             hidden);
}
// Sums in bf16, two to an atomic addition.
__global__ __launch_bounds__(threads) void scatter_bf16_kernel(const __nv_bfloat162* rows, const int* slot_of_row,
                                                               const float* weights, __nv_bfloat162* sums, int top_k, int pairs) {
  const int slot = slot_of_row[blockIdx.x];
  if (slot < 0) return;
  const float weight = weights[slot];
  for (int i = static_cast<int>(threadIdx.x); i < pairs; i += threads) {
    const float2 x = __bfloat1622float2(rows[std::size_t{blockIdx.x} * pairs + i]);
    atomicAdd(sums + static_cast<std::size_t>(slot / top_k) * pairs + i, __floats2bfloat162_rn(x.x * weight, x.y * weight));
  }
}
__global__ __launch_bounds__(threads) void narrow_kernel(const float4* sums, uint4* out, std::size_t packets) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= packets) return;
  const float4 a = sums[2 * i], b = sums[2 * i + 1];
  const float x[packet] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  out[i] = shared::pack(x);
}

class MoeUnpermute final : public Workload {
 public:
  explicit MoeUnpermute(Setup& setup)
      : tokens_{setup.size("tokens")},
        hidden_{setup.size("hidden")},
        top_k_{setup.size("top_k")},
        experts_{setup.size("experts")},
        slots_{tokens_ * top_k_},
        routing_{static_cast<moe::Routing>(setup.size("routing"))},
        rows_{setup.input<bf16>(slots_ * hidden_, rows_or_nan(), {.name = "rows"})},
        row_of_slot_{setup.input<int>(slots_, [this](std::span<int> to, std::uint64_t) { copy(grouped().row_of_slot, to); },
                                      {.name = "rows of slots"})},
        slot_of_row_{setup.input<int>(slots_, [this](std::span<int> to, std::uint64_t) { copy(grouped().slot_of_row, to); },
                                      {.name = "slots of rows"})},
        weights_{setup.input<float>(slots_, weights(), {.name = "weights"})},
        out_{setup.output<bf16>(tokens_ * hidden_, {.name = "combined"})},
        sums_{setup.scratch<float>(tokens_ * hidden_)} {}

  // Rows that are dropped need not be read.
  Cost cost() const override {
    const auto kept = static_cast<double>(slots_ - dropped());
    return {.flops = 2 * kept * static_cast<double>(hidden_),
            .bytes = kept * static_cast<double>(hidden_ * sizeof(bf16)) +
                     static_cast<double>(row_of_slot_.bytes() + weights_.bytes() + out_.bytes())};
  }
  double expected(std::size_t i) const override {
    const std::size_t token = i / hidden_;
    double sum = 0;
    for (std::size_t slot = token * top_k_; slot < (token + 1) * top_k_; ++slot) {
      const int row = row_of_slot_.host(slot);
      if (row >= 0) sum += weights_.host(slot) * rows_.host(static_cast<std::size_t>(row) * hidden_ + i % hidden_);
    }
    return sum;
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("token rate", static_cast<double>(tokens_), "tokens/s");
  }

  void atomic_scatter(Launch& launch) { scatter(launch, scatter_kernel<1>, slot_of_row_); }
  void vector_red(Launch& launch) { scatter(launch, scatter_kernel<4>, slot_of_row_); }
  void atomics_token_order(Launch& launch) { scatter(launch, scatter_in_token_order_kernel, row_of_slot_); }
  void bf16_atomics(Launch& launch) {
    check(cudaMemsetAsync(out_, 0, out_.bytes(), launch.stream));
    launch(scatter_bf16_kernel, {static_cast<unsigned>(slots_), threads}, reinterpret_cast<const __nv_bfloat162*>(rows_.get()),
           slot_of_row_, weights_, reinterpret_cast<__nv_bfloat162*>(out_.get()), top_k_, hidden_ / 2);
  }
  void gather_reduce(Launch& launch) {
    dispatch<1, 2, 4, 6, 8>("top_k", top_k_, [&]<int top_k>() {
      launch(moe::gather_reduce_kernel<top_k>, {static_cast<unsigned>(tokens_), threads}, rows(), row_of_slot_, weights_, out(),
             packets());
    });
  }

 private:
  std::size_t dropped() const { return slots_ / drop_every; }
  moe::Grouped grouped() const {
    std::vector<int> experts_of(slots_);
    moe::choose_experts(experts_of, {.experts = experts_, .top_k = top_k_, .routing = routing_}, 1);
    for (std::size_t i = 0; i < dropped(); ++i) experts_of[i * drop_every + random_bits(1, i) % drop_every] = -1;
    return moe::group_by_expert(experts_of, experts_);
  }
  static void copy(const std::vector<int>& from, std::span<int> to) { std::copy(from.begin(), from.end(), to.begin()); }
  // The last rows, as many as there are dropped slots, have no slot.
  Pattern rows_or_nan() const {
    const Axis rows{hidden_, slots_};
    const Pattern values = normal(0, 1);
    return dropped() == 0 ? values : values.set(std::numeric_limits<float>::quiet_NaN(), at(rows, slots_ - dropped(), dropped()));
  }
  // In the second half of the tokens half of the weights are negative, so that sums cancel; some weights are zero.
  Pattern weights() const {
    const Axis of_token{1, top_k_}, tokens{top_k_, tokens_};
    return uniform(0, 0.25f)
        .times(-1, at(of_token, top_k_ / 2, top_k_ / 2), at(tokens, tokens_ / 2, tokens_ / 2))
        .set(0, drawn({1, slots_}, std::max<std::size_t>(slots_ / 64, 1)));
  }
  const uint4* rows() const { return reinterpret_cast<const uint4*>(rows_.get()); }
  uint4* out() const { return reinterpret_cast<uint4*>(out_.get()); }
  int packets() const { return static_cast<int>(hidden_ / packet); }
  template <class Kernel>
  void scatter(Launch& launch, Kernel kernel, const int* map) {
    check(cudaMemsetAsync(sums_, 0, sums_.bytes(), launch.stream));
    launch(kernel, {static_cast<unsigned>(slots_), threads}, rows_, map, weights_, sums_, top_k_, hidden_);
    const std::size_t all = out_.size() / packet;
    launch(narrow_kernel, {static_cast<unsigned>((all + threads - 1) / threads), threads},
           reinterpret_cast<const float4*>(sums_.get()), out(), all);
  }

  std::size_t tokens_, hidden_, top_k_, experts_, slots_;
  moe::Routing routing_;
  Input<bf16> rows_;
  Input<int> row_of_slot_, slot_of_row_;
  Input<float> weights_;
  Output<bf16> out_;
  Scratch<float> sums_;
};

}  // namespace

extern constinit const Pair moe_unpermute{
    .teaches =
        "returning the experts' rows to their tokens is a scatter-add that turns into a gather: each output is written once",
    .lesson = "gather_reduce",
    .make = make<MoeUnpermute>,
    .baseline = {.name = "atomic_scatter", .run = call<&MoeUnpermute::atomic_scatter>, .deterministic = false},
    .optimized = variants({{.name = "vector_red", .run = call<&MoeUnpermute::vector_red>, .deterministic = false},
                           {.name = "gather_reduce", .run = call<&MoeUnpermute::gather_reduce>}}),
    .controls = variants(
        {{.name = "atomics_token_order", .run = call<&MoeUnpermute::atomics_token_order>, .deterministic = false},
         // Eight sums are rounded to bf16 one after the other, and so is each product: sqrt(16) roundings.
         {.name = "bf16_atomics", .run = call<&MoeUnpermute::bf16_atomics>, .tolerance = within(1e-2), .deterministic = false}}),
    .bound = Bound::memory,
    .tolerance = rounded_to_bf16,
    .sizes = sizes({{.name = "tokens", .full = 8192, .most = 1u << 16},
                    {.name = "hidden", .full = 4096, .multiple = 8, .most = 16384, .scales = false},
                    {.name = "top_k", .full = 8, .most = 8, .scales = false},
                    {.name = "experts", .full = 64, .most = 512, .scales = false},
                    {.name = "routing", .full = 0, .least = 0, .most = 3, .scales = false}}),
    .sweep = cases({{"top_1", "top_k=1"},
                    {"top_2", "top_k=2"},
                    {"top_4", "top_k=4"},
                    {"top_8", "top_k=8"},
                    {"tokens_16", "tokens=16"},
                    {"tokens_1024", "tokens=1024"},
                    {"published_top_2", "tokens=2048,top_k=2"}}),
    .edges = cases({{"one_token", "tokens=1"},
                    {"tail", "tokens=1023,hidden=4104"},
                    {"planted", "tokens=2048,hidden=64,routing=2"},
                    {"same_experts", "tokens=2048,hidden=64,routing=3"}}),
};

}  // namespace aisp::ch17
