// SPDX-License-Identifier: Apache-2.0
// The gate of a mixture of experts: the k largest of a token's logits and their weights. Written as it is defined, softmax, top-k
// and renormalization are three kernels, and the matrix of all probabilities moves through memory twice. Softmax over the k
// winners alone gives the same weights, so that one pass over the logits is enough; then the k rounds that find the winners
// count.
#include <aisp/device/exponential.cuh>
#include <aisp/device/reduce.cuh>
#include <aisp/dispatch.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace aisp::ch17 {
namespace {

constexpr int threads = 256, warps = threads / device::warp_size;
constexpr float log2_e = 1.4426950408889634f;

__device__ float minus_infinity() { return __uint_as_float(0xFF800000u); }
__device__ int lane() { return static_cast<int>(threadIdx.x % device::warp_size); }
__device__ unsigned row_of_warp() { return blockIdx.x * warps + threadIdx.x / device::warp_size; }
__device__ float exponential(float x, float maximum) { return device::exp2_approximate((x - maximum) * log2_e); }

// Ascending as floats are, as integers: -0 and +0 are equal, and 0 is below -infinity.
__device__ unsigned key_of(float x) {
  const unsigned bits = __float_as_uint(x + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
__device__ float value_of(unsigned key) { return __uint_as_float(key >> 31 != 0 ? key & 0x7FFFFFFFu : ~key); }

// How a warp holds a row: in chunks of one access of up to 16 bytes a lane.
template <int experts>
struct Row {
  static constexpr int wide = experts <= 64 ? 2 : 4, chunks = (experts + wide * 32 - 1) / (wide * 32), count = chunks * wide;
  static_assert(experts % wide == 0);
  using Chunk = std::conditional_t<wide == 2, float2, float4>;

  __device__ static int column(int i) { return i / wide * wide * 32 + lane() * wide + i % wide; }
  __device__ static bool has(int i) { return experts % (wide * 32) == 0 || column(i) < experts; }

  // Calls use(i, value) for those that exist; the others stay as they are.
  template <class Use>
  __device__ static void load(const float* rows, Use use) {
    const float* const row = rows + std::size_t{row_of_warp()} * experts;
    Chunk loaded[chunks];
#pragma unroll
    for (int c = 0; c < chunks; ++c)
      if (has(c * wide)) loaded[c] = *reinterpret_cast<const Chunk*>(row + column(c * wide));
#pragma unroll
    for (int c = 0; c < chunks; ++c)
#pragma unroll
      for (int i = 0; i < wide; ++i)
        if (has(c * wide)) use(c * wide + i, reinterpret_cast<const float*>(&loaded[c])[i]);
  }
};

struct Winner {
  float value;
  int column;
};

// Winner r for lane r, of the k largest. In each round the lanes' own largest, the first of equal ones as columns ascend, then
// five exchanges. A value that has won becomes -infinity, which no other is.
template <int experts>
__device__ Winner find_winners(float (&values)[Row<experts>::count], int k) {
  Winner own{minus_infinity(), 0};
  for (int r = 0; r < k; ++r) {
    Winner best{minus_infinity(), std::numeric_limits<int>::max()};
#pragma unroll
    for (int i = 0; i < Row<experts>::count; ++i)
      if (values[i] > best.value) best = {values[i], Row<experts>::column(i)};
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      const Winner other{__shfl_xor_sync(device::whole_warp, best.value, offset),
                         __shfl_xor_sync(device::whole_warp, best.column, offset)};
      if (other.value > best.value || (other.value == best.value && other.column < best.column)) best = other;
    }
    if (lane() == r) own = best;
#pragma unroll
    for (int i = 0; i < Row<experts>::count; ++i)
      values[i] = Row<experts>::column(i) == best.column ? minus_infinity() : values[i];
  }
  return own;
}

struct Gate {
  int* ids;        // [rows][k]
  float* weights;  // [rows][k]
  unsigned rows;
  int k;
  __device__ std::size_t place() const { return std::size_t{row_of_warp()} * k + lane(); }
};

// Softmax over the winners, of which lane r has the r-th: lane 0 the maximum.
__device__ void store_winner(const Gate& gate, float value, int column) {
  const float maximum = __shfl_sync(device::whole_warp, value, 0);
  const float weight = lane() < gate.k ? exponential(value, maximum) : 0;
  const float sum = device::warp_sum(weight);
  if (lane() >= gate.k) return;
  gate.ids[gate.place()] = column;
  gate.weights[gate.place()] = weight / sum;
}

template <int experts>
__device__ float row_sum(const float (&values)[Row<experts>::count], float& maximum) {
  maximum = minus_infinity();
#pragma unroll
  for (const float value : values) maximum = fmaxf(maximum, value);
  maximum = device::warp_max(maximum);
  float sum = 0;
#pragma unroll
  for (const float value : values) sum += exponential(value, maximum);
  return device::warp_sum(sum);
}

// A masked expert's -infinity becomes the lowest number, so that it can still win where too few others are left.
template <int experts>
__device__ void load_values(const float* logits, float (&values)[Row<experts>::count]) {
#pragma unroll
  for (float& value : values) value = minus_infinity();
  Row<experts>::load(logits, [&](int i, float value) { values[i] = fmaxf(value, -std::numeric_limits<float>::max()); });
}

template <int experts>
__global__ __launch_bounds__(threads) void softmax_kernel(const float* logits, float* probabilities, unsigned rows) {
  using Of = Row<experts>;
  if (row_of_warp() >= rows) return;
  float values[Of::count], maximum;
  load_values<experts>(logits, values);
  const float factor = 1 / row_sum<experts>(values, maximum);
  float* const row = probabilities + std::size_t{row_of_warp()} * experts;
#pragma unroll
  for (int c = 0; c < Of::chunks; ++c) {
    typename Of::Chunk chunk;
#pragma unroll
    for (int i = 0; i < Of::wide; ++i)
      reinterpret_cast<float*>(&chunk)[i] = exponential(values[c * Of::wide + i], maximum) * factor;
    if (Of::has(c * Of::wide)) *reinterpret_cast<typename Of::Chunk*>(row + Of::column(c * Of::wide)) = chunk;
  }
}
template <int experts>
__global__ __launch_bounds__(threads) void top_k_kernel(const float* probabilities, Gate gate) {
  if (row_of_warp() >= gate.rows) return;
  float values[Row<experts>::count];
  load_values<experts>(probabilities, values);
  const Winner own = find_winners<experts>(values, gate.k);
  if (lane() >= gate.k) return;
  gate.ids[gate.place()] = own.column;
  gate.weights[gate.place()] = own.value;
}
__global__ __launch_bounds__(threads) void renormalize_kernel(Gate gate) {
  const std::size_t row = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (row >= gate.rows) return;
  float* const weights = gate.weights + row * gate.k;
  float sum = 0;
  for (int i = 0; i < gate.k; ++i) sum += weights[i];
  for (int i = 0; i < gate.k; ++i) weights[i] /= sum;
}

// With `over_all`, the winners' probabilities among all experts, renormalized: the definition, in one kernel.
template <int experts, bool over_all>
__global__ __launch_bounds__(threads) void fused_kernel(const float* logits, Gate gate) {
  if (row_of_warp() >= gate.rows) return;
  float values[Row<experts>::count];
  load_values<experts>(logits, values);
  Winner own{};
  if constexpr (over_all) {
    float maximum;
    const float factor = 1 / row_sum<experts>(values, maximum);
    own = find_winners<experts>(values, gate.k);
    const float probability = lane() < gate.k ? exponential(own.value, maximum) * factor : 0;
    const float sum = device::warp_sum(probability);
    if (lane() >= gate.k) return;
    gate.ids[gate.place()] = own.column;
    gate.weights[gate.place()] = probability / sum;
  } else {
    own = find_winners<experts>(values, gate.k);
    store_winner(gate, own.value, own.column);
  }
}

// The largest key and, of the columns that have it, the first, by two reductions in hardware.
template <int experts>
__global__ __launch_bounds__(threads) void redux_keys_kernel(const float* logits, Gate gate) {
  using Of = Row<experts>;
  if (row_of_warp() >= gate.rows) return;
  unsigned keys[Of::count] = {};
  Of::load(logits, [&](int i, float value) { keys[i] = key_of(value); });
  float own_value = minus_infinity();
  int own_column = 0;
  for (int r = 0; r < gate.k; ++r) {
    unsigned largest = keys[0];
#pragma unroll
    for (const unsigned key : keys) largest = max(largest, key);
    largest = __reduce_max_sync(device::whole_warp, largest);
    unsigned column = ~0u;
#pragma unroll
    for (int i = Of::count - 1; i >= 0; --i) column = keys[i] == largest ? static_cast<unsigned>(Of::column(i)) : column;
    column = __reduce_min_sync(device::whole_warp, column);
#pragma unroll
    for (int i = 0; i < Of::count; ++i) keys[i] = static_cast<unsigned>(Of::column(i)) == column ? 0 : keys[i];
    if (lane() == r) {
      own_value = value_of(largest);
      own_column = static_cast<int>(column);
    }
  }
  store_winner(gate, own_value, own_column);
}

constexpr int network_size(int count) {
  int size = 1;
  while (size < count) size *= 2;
  return size;
}

// Largest first, equal keys by column: Batcher's odd-even merge sort, whose comparisons are known at compile time.
template <int p = 1, int q = 1, int count>
__device__ __forceinline__ void sort(unsigned (&keys)[count], unsigned (&columns)[count]) {
#pragma unroll
  for (int a = q % p; a < count - q; ++a) {
    const int b = a + q;
    if ((a - q % p) % (2 * q) >= q || a / (2 * p) != b / (2 * p)) continue;
    const unsigned key[2] = {keys[a], keys[b]}, column[2] = {columns[a], columns[b]};
    const bool swap = key[1] > key[0] || (key[1] == key[0] && column[1] < column[0]);
    keys[a] = swap ? key[1] : key[0];
    columns[a] = swap ? column[1] : column[0];
    keys[b] = swap ? key[0] : key[1];
    columns[b] = swap ? column[0] : column[1];
  }
  if constexpr (q > 1) sort<p, q / 2>(keys, columns);
  else if constexpr (2 * p < count) sort<2 * p, 2 * p>(keys, columns);
}

// Each lane leaves its sorted list in shared memory. In a round the lane that wins puts its head among the winners and takes the
// next one of its list.
template <int experts>
__global__ __launch_bounds__(threads) void presorted_lanes_kernel(const float* logits, Gate gate) {
  using Of = Row<experts>;
  constexpr int count = network_size(Of::count);
  __shared__ uint2 lists[warps][count][device::warp_size], winners[warps][device::warp_size];
  if (row_of_warp() >= gate.rows) return;
  const int warp = static_cast<int>(threadIdx.x) / device::warp_size;
  unsigned keys[count] = {}, columns[count];
#pragma unroll
  for (int i = 0; i < count; ++i) columns[i] = static_cast<unsigned>(Of::column(i));
  Of::load(logits, [&](int i, float value) { keys[i] = key_of(value); });
  sort(keys, columns);
  uint2* next = &lists[warp][0][lane()];
#pragma unroll
  for (int i = 1; i < count; ++i) next[(i - 1) * device::warp_size] = make_uint2(keys[i], columns[i]);
  next[(count - 1) * device::warp_size] = make_uint2(0, ~0u);
  uint2 head = make_uint2(keys[0], columns[0]);
  for (int r = 0; r < gate.k; ++r) {
    const unsigned largest = __reduce_max_sync(device::whole_warp, head.x);
    const unsigned column = __reduce_min_sync(device::whole_warp, head.x == largest ? head.y : ~0u);
    if (head.y == column) {
      winners[warp][r] = head;
      head = *next;
      next += device::warp_size;
    }
  }
  __syncwarp();
  const uint2 own = winners[warp][lane() < gate.k ? lane() : 0];
  store_winner(gate, value_of(own.x), static_cast<int>(own.y));
}

class MoeTopkGating final : public Workload {
 public:
  explicit MoeTopkGating(Setup& setup)
      : tokens_{setup.size("tokens")},
        experts_{setup.size("experts")},
        k_{setup.size("top_k")},
        logits_{setup.input<float>(tokens_ * experts_, logits(), {.name = "logits"})},
        ids_{setup.output<int>(tokens_ * k_, {.name = "experts"})},
        weights_{setup.output<float>(tokens_ * k_, {.name = "weights"})},
        probabilities_{setup.scratch<float>(tokens_ * experts_)} {
    if (k_ > experts_ / 2) throw Unsupported{"a token takes at most half of the experts"};
  }

  Cost cost() const override { return {.bytes = static_cast<double>(logits_.bytes() + ids_.bytes() + weights_.bytes())}; }
  double expected_output(int output, std::size_t i) const override {
    const std::size_t token = i / k_;
    std::vector<double> row(experts_);
    for (std::size_t e = 0; e < experts_; ++e) row[e] = logits_.host(token * experts_ + e);
    std::vector<std::size_t> order(experts_);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k_), order.end(),
                      [&](std::size_t a, std::size_t b) { return row[a] > row[b] || (row[a] == row[b] && a < b); });
    if (output == 0) return static_cast<double>(order[i % k_]);
    double sum = 0;
    for (std::size_t r = 0; r < k_; ++r) sum += std::exp(row[order[r]] - row[order[0]]);
    return std::exp(row[order[i % k_]] - row[order[0]]) / sum;
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("token rate", static_cast<double>(tokens_), "tokens/s");
  }

  void three_kernels(Launch& launch) {
    for_experts([&]<int experts>() {
      launch(softmax_kernel<experts>, grid(), logits_, probabilities_, tokens_);
      launch(top_k_kernel<experts>, grid(), probabilities_, gate());
    });
    launch(renormalize_kernel, {blocks(threads), threads}, gate());
  }
  void fused(Launch& launch) {
    for_experts([&]<int experts>() { launch(fused_kernel<experts, false>, grid(), logits_, gate()); });
  }
  void fused_all_experts(Launch& launch) {
    for_experts([&]<int experts>() { launch(fused_kernel<experts, true>, grid(), logits_, gate()); });
  }
  void redux_keys(Launch& launch) {
    for_experts([&]<int experts>() { launch(redux_keys_kernel<experts>, grid(), logits_, gate()); });
  }
  void presorted_lanes(Launch& launch) {
    for_experts([&]<int experts>() { launch(presorted_lanes_kernel<experts>, grid(), logits_, gate()); });
  }
  void one_winner(Launch& launch) {
    Gate first = gate();
    first.k = 1;
    for_experts([&]<int experts>() { launch(fused_kernel<experts, false>, grid(), logits_, first); });
  }

 private:
  // On a grid of 1/64, so that logits are equal or clearly not: equal ones are frequent among winners. Then rows of equal logits,
  // zeros of both signs; rows that leave four experts unmasked; and rows half of which lies 10000 above the rest.
  Pattern logits() const {
    const Axis columns{1, experts_}, rows{experts_, tokens_};
    return normal(0, 2)
        .on_grid(1.0f / 64)
        .set(0, all_of(columns), at(rows, tokens_ / 2, std::min<std::size_t>(tokens_ / 4, 64)))
        .set(-0.0f, drawn(columns, experts_ / 4), at(rows, tokens_ / 2, std::min<std::size_t>(tokens_ / 4, 64)))
        .set(-std::numeric_limits<float>::infinity(), at(columns, 4, experts_ - 4),
             drawn(rows, std::max<std::size_t>(tokens_ / 64, 1)))
        .plus_steps(10000, experts_ / 2, all_of(columns), at(rows, tokens_ / 4, std::min<std::size_t>(tokens_ / 4, 64)));
  }
  template <class Use>
  void for_experts(const Use& use) const {
    dispatch<60, 64, 256, 384, 512>("experts", experts_, use);
  }
  unsigned blocks(std::size_t each) const { return static_cast<unsigned>((tokens_ + each - 1) / each); }
  Grid grid() const { return {blocks(warps), threads}; }
  Gate gate() const { return {ids_, weights_, static_cast<unsigned>(tokens_), static_cast<int>(k_)}; }

  std::size_t tokens_, experts_, k_;
  Input<float> logits_;
  Output<int> ids_;
  Output<float> weights_;
  Scratch<float> probabilities_;
};

// Exponentials by the special-function unit are within 2^-22, the product before them is rounded, and so are sum and quotient.
constexpr Tolerance weights_of_winners = within(2e-6, 1e-5);

}  // namespace

extern constinit const Pair moe_topk_gating{
    .teaches =
        "softmax over the k winners equals renormalized top-k of the full softmax, so that one pass over the logits is enough",
    .lesson = "fused",
    .make = make<MoeTopkGating>,
    .baseline = {.name = "three_kernels", .run = call<&MoeTopkGating::three_kernels>},
    .optimized = variants({{.name = "fused", .run = call<&MoeTopkGating::fused>},
                           {.name = "redux_keys", .run = call<&MoeTopkGating::redux_keys>},
                           {.name = "presorted_lanes", .run = call<&MoeTopkGating::presorted_lanes>}}),
    .controls = variants({{.name = "fused_all_experts", .run = call<&MoeTopkGating::fused_all_experts>},
                          {.name = "one_winner", .run = call<&MoeTopkGating::one_winner>, .outputs = no_outputs}}),
    .bound = Bound::memory,
    .tolerance = per_output({exact, weights_of_winners}),
    .sizes = sizes({{.name = "tokens", .full = 262144, .most = 1u << 20},
                    {.name = "experts", .full = 256, .most = 512, .scales = false},
                    {.name = "top_k", .full = 8, .most = 32, .scales = false}}),
    .sweep = cases({{"top_1", "top_k=1"},
                    {"top_4", "top_k=4"},
                    {"top_8", "top_k=8"},
                    {"top_16", "top_k=16"},
                    {"experts_64", "experts=64"},
                    {"experts_512", "experts=512"}}),
    .edges = cases({{"one_token", "tokens=1"},
                    {"experts_60", "tokens=1003,experts=60"},
                    {"experts_384", "tokens=1003,experts=384,top_k=7"},
                    {"top_32", "tokens=515,experts=64,top_k=32"}}),
};

}  // namespace aisp::ch17
