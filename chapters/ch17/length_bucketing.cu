// SPDX-License-Identifier: Apache-2.0
// One encoder layer over 256 requests of very different lengths. Batches in the order of arrival are padded to their longest
// request, and most of what they compute is padding. Requests that are sorted by length share a batch with others as long as
// they are: the same kernels do a fraction of the work. Attention skips padding in all variants, so that it is the products'.
#include <cuda_bf16.h>
#include <aisp/device/reduce.cuh>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>
#include <aisp/ragged.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <string_view>
#include <vector>

#include "attention/forward.hpp"
#include "encoder_reference.cuh"
#include "rows.cuh"

namespace aisp::ch17 {
namespace {

using encoder::heads, encoder::head_size, encoder::width, encoder::ffn;
using shared::bf16;
constexpr int threads = 256, packets = static_cast<int>(width / shared::packet);
constexpr std::size_t longest = 2048, budget = 16384, length_step = 64;
constexpr float garbage = 300;  // what padding holds

// Requests of one batch, as places in the order of the schedule.
struct Batch {
  std::size_t first, count, length;
  std::size_t rows() const { return count * length; }
};

struct Requests {
  const int* begins;   // of each request's tokens
  const int* numbers;  // of the batch's requests
};

__device__ void load(const uint4* from, float (&x)[shared::packet]) { shared::unpack(*from, x); }

// [count][length] rows from packed ones; padding is garbage.
__global__ __launch_bounds__(packets) void pad_kernel(Requests requests, const uint4* tokens, uint4* padded) {
  const int request = requests.numbers[blockIdx.y], begin = requests.begins[request];
  const std::size_t row = std::size_t{blockIdx.y} * gridDim.x + blockIdx.x;
  float fill[shared::packet];
#pragma unroll
  for (float& value : fill) value = garbage;
  padded[row * packets + threadIdx.x] = static_cast<int>(blockIdx.x) < requests.begins[request + 1] - begin
                                            ? tokens[(static_cast<std::size_t>(begin) + blockIdx.x) * packets + threadIdx.x]
                                            : shared::pack(fill);
}

// out = layer norm of x + y. A block for each row.
__global__ __launch_bounds__(packets) void add_norm_kernel(const uint4* x, const uint4* y, uint4* out) {
  __shared__ float sums[device::largest_block_in_warps];
  const std::size_t at = std::size_t{blockIdx.x} * packets + threadIdx.x;
  float a[shared::packet], b[shared::packet], sum = 0, squares = 0;
  load(x + at, a);
  load(y + at, b);
#pragma unroll
  for (int i = 0; i < shared::packet; ++i) sum += a[i] += b[i];
  const float mean = device::block_sum(sum, sums) / static_cast<float>(width);
#pragma unroll
  for (float& value : a) {
    value -= mean;
    squares += value * value;
  }
  const float factor = rsqrtf(device::block_sum(squares, sums) / static_cast<float>(width) + encoder::epsilon);
#pragma unroll
  for (float& value : a) value *= factor;
  out[at] = shared::pack(a);
}

// The mean of a request's tokens, which begin at a multiple of `pitch` rows or, where that is 0, where the packed ones do. A
// block has 128 columns, and 16 of its threads a row of them.
__global__ __launch_bounds__(threads) void pool_kernel(Requests requests, const uint4* rows, float* pooled, int pitch) {
  constexpr int across = 16, down = threads / across;
  __shared__ float sums[down][across][shared::packet];
  const int request = requests.numbers[blockIdx.y], begin = requests.begins[request];
  const int length = requests.begins[request + 1] - begin, column = static_cast<int>(threadIdx.x) % across;
  const int first = static_cast<int>(threadIdx.x) / across, packet = static_cast<int>(blockIdx.x) * across + column;
  const std::size_t row = pitch == 0 ? static_cast<std::size_t>(begin) : std::size_t{blockIdx.y} * pitch;
  float sum[shared::packet] = {};
#pragma unroll 4
  for (int i = first; i < length; i += down) {
    float x[shared::packet];
    load(rows + (row + i) * packets + packet, x);
#pragma unroll
    for (int j = 0; j < shared::packet; ++j) sum[j] += x[j];
  }
#pragma unroll
  for (int j = 0; j < shared::packet; ++j) sums[first][column][j] = sum[j];
  __syncthreads();
  if (first >= shared::packet) return;
  float total = 0;
  for (int i = 0; i < down; ++i) total += sums[i][column][first];
  pooled[std::size_t(request) * width + packet * shared::packet + first] = total / static_cast<float>(length);
}

class LengthBucketing final : public Workload {
 public:
  explicit LengthBucketing(Setup& setup)
      : requests_{setup.size("requests")},
        batch_{setup.size("batch")},
        offsets_{draw_offsets(static_cast<double>(setup.size("spread_percent")) / 100)},
        tokens_{static_cast<std::size_t>(offsets_.back())},
        most_rows_{std::max({batches_rows(in_order()), tokens_, std::size_t{budget}})},
        x_{setup.input<bf16>(tokens_ * width, normal(0, 1), {.name = "tokens"})},
        begins_{setup.input<int>(
            requests_ + 1, [this](std::span<int> to, std::uint64_t) { std::copy(offsets_.begin(), offsets_.end(), to.begin()); },
            {.name = "begins of requests", .constant = true})},
        qkv_weights_{weights(setup, width, 3 * width, "weights of q, k, v")},
        out_weights_{weights(setup, width, width, "weights after attention")},
        up_weights_{weights(setup, width, ffn, "weights up")},
        down_weights_{weights(setup, ffn, width, "weights down")},
        biases_{setup.input<bf16>(5 * width + ffn, normal(0, 0.02f), {.name = "biases", .constant = true})},
        pooled_{setup.output<float>(requests_ * width, {.name = "pooled"})},
        padded_{setup.scratch<bf16>(most_rows_ * width)},
        qkv_{setup.scratch<bf16>(most_rows_ * 3 * width)},
        attended_{setup.scratch<bf16>(most_rows_ * width)},
        projected_{setup.scratch<bf16>(most_rows_ * width)},
        normed_{setup.scratch<bf16>(most_rows_ * width)},
        up_{setup.scratch<bf16>(most_rows_ * ffn)},
        schedule_{setup.scratch<int>(2 * requests_)},
        host_schedule_{setup.scratch<int>(2 * requests_, {.memory = Memory::pinned})},
        fp64_{setup.scratch<double>(encoder::Reference::doubles(longest))},
        lt_{setup} {}

  Cost cost() const override {
    double seen = 0;
    for (std::size_t r = 0; r < requests_; ++r) seen += static_cast<double>(length(r)) * static_cast<double>(length(r));
    const double weights = static_cast<double>(4 * width * width + 2 * width * ffn);
    return {.flops = 2 * static_cast<double>(tokens_) * weights + 4 * seen * static_cast<double>(width),
            .math = Math::bf16,
            .bytes = static_cast<double>(x_.bytes() + pooled_.bytes()) + weights * sizeof(bf16)};
  }
  void compute_reference(Launch& launch) override {
    expected_.resize(requests_ * width);
    const encoder::Weights weights{qkv_weights_, out_weights_, up_weights_, down_weights_,
                                   qkv_bias(),   out_bias(),   up_bias(),   down_bias()};
    const encoder::Reference reference{weights, fp64_, longest};
    for (std::size_t r = 0; r < requests_; ++r) {
      reference.run(launch.stream, x_ + static_cast<std::size_t>(offsets_[r]) * width, length(r));
      check(cudaMemcpyAsync(expected_.data() + r * width, reference.pooled(), width * sizeof(double), cudaMemcpyDeviceToHost,
                            launch.stream));
    }
    check(cudaStreamSynchronize(launch.stream));
  }
  double expected(std::size_t i) const override { return expected_[i]; }
  void metrics(std::string_view variant, Metrics& metrics) override {
    const std::size_t rows = variant == "packed" ? tokens_ : all_rows(batches_of(variant));
    metrics.report("padding", 100 * (1 - static_cast<double>(tokens_) / static_cast<double>(rows)), "% of rows",
                   Metrics::Better::lower);
    metrics.report_rate("request rate", static_cast<double>(requests_), "requests/s");
  }

  void arrival_order(Launch& launch) { run(launch, in_order()); }
  void sorted_batches(Launch& launch) { run(launch, sorted()); }
  void token_budget(Launch& launch) { run(launch, within_budget()); }
  void packed(Launch& launch) {
    using Pass = attention::ForwardPass<head_size, head_size, attention::NoMask, attention::Varlen, attention::Scaled, false,
                                        attention::InOrder>;
    std::vector<std::size_t> order(requests_);
    std::iota(order.begin(), order.end(), std::size_t{0});
    upload(launch, order);
    layer(launch, x_, tokens_, [&] {
      Pass{tensors(1, tokens_),
           {.mask = {}, .keys = {begins_, begins_}, .score = score, .order = attention::in_order(longest, heads, requests_)}}
          .run(launch);
    });
    launch(pool_kernel, {dim3{packets / 16, static_cast<unsigned>(requests_)}, threads}, Requests{begins_, schedule_},
           packet(padded_), pooled_, 0);
    launch.mark("half_done");
  }

 private:
  struct Plans {
    MatmulPlan qkv, out, up, down;
  };
  struct Schedule {
    std::vector<std::size_t> order;
    std::vector<Batch> batches;
  };
  static constexpr attention::Scaled score{static_cast<float>(encoder::score_scale * 1.4426950408889634)};

  // The median is 256; 8, 64, 65 and 2048 are always there.
  std::vector<int> draw_offsets(double sigma) const {
    std::vector<int> offsets(requests_ + 1);
    const auto most = static_cast<std::int64_t>(longest);
    ragged_offsets<int>(log_normal(256, sigma, 8, most), static_cast<std::int64_t>(requests_) * most, {8, 64, 65, most})(offsets,
                                                                                                                         1);
    return offsets;
  }
  std::size_t length(std::size_t request) const { return static_cast<std::size_t>(offsets_[request + 1] - offsets_[request]); }
  static Input<bf16> weights(Setup& setup, std::size_t rows, std::size_t columns, const char* name) {
    return setup.input<bf16>(rows * columns, normal(0, 0.02f), {.name = name, .constant = true});
  }
  const bf16* qkv_bias() const { return biases_; }
  const bf16* out_bias() const { return biases_ + 3 * width; }
  const bf16* down_bias() const { return biases_ + 4 * width; }
  const bf16* up_bias() const { return biases_ + 5 * width; }

  // So many requests a batch, as they stand in `order`; each batch is as long as its longest request.
  std::vector<Batch> in_batches(const std::vector<std::size_t>& order) const {
    std::vector<Batch> batches;
    for (std::size_t first = 0; first < requests_; first += batch_) {
      Batch batch{first, std::min(batch_, requests_ - first), 0};
      for (std::size_t i = first; i < first + batch.count; ++i) batch.length = std::max(batch.length, length(order[i]));
      batches.push_back(batch);
    }
    return batches;
  }
  Schedule in_order() const {
    std::vector<std::size_t> order(requests_);
    std::iota(order.begin(), order.end(), std::size_t{0});
    return {order, in_batches(order)};
  }
  std::vector<std::size_t> by_length() const {
    std::vector<std::size_t> order = in_order().order;
    std::ranges::stable_sort(order, {}, [this](std::size_t request) { return length(request); });
    return order;
  }
  Schedule sorted() const {
    const std::vector<std::size_t> order = by_length();
    return {order, in_batches(order)};
  }
  // As many requests a batch as have 16384 rows together, each batch a multiple of 64 long.
  Schedule within_budget() const {
    Schedule schedule{by_length(), {}};
    for (std::size_t i = 0; i < requests_; ++i) {
      const std::size_t rounded = (length(schedule.order[i]) + length_step - 1) / length_step * length_step;
      Batch* const last = schedule.batches.empty() ? nullptr : &schedule.batches.back();
      if (last != nullptr && (last->count + 1) * rounded <= budget) {
        ++last->count;
        last->length = rounded;
      } else schedule.batches.push_back({i, 1, rounded});
    }
    return schedule;
  }
  Schedule batches_of(std::string_view variant) const {
    return variant == "sorted_batches" ? sorted() : variant == "token_budget" ? within_budget() : in_order();
  }
  static std::size_t all_rows(const Schedule& schedule) {
    std::size_t rows = 0;
    for (const Batch& batch : schedule.batches) rows += batch.rows();
    return rows;
  }
  static std::size_t batches_rows(const Schedule& schedule) {
    std::size_t most = 0;
    for (const Batch& batch : schedule.batches) most = std::max(most, batch.rows());
    return most;
  }

  // Requests and their lengths in the schedule's order.
  void upload(Launch& launch, const std::vector<std::size_t>& order) const {
    for (std::size_t i = 0; i < requests_; ++i) {
      host_schedule_[i] = static_cast<int>(order[i]);
      host_schedule_[requests_ + i] = static_cast<int>(length(order[i]));
    }
    check(cudaMemcpyAsync(schedule_, host_schedule_, schedule_.bytes(), cudaMemcpyHostToDevice, launch.stream));
  }
  void run(Launch& launch, const Schedule& schedule) {
    using Pass = attention::ForwardPass<head_size, head_size, attention::NoMask, attention::Padded, attention::Scaled, false,
                                        attention::InOrder>;
    upload(launch, schedule.order);
    for (const Batch& batch : schedule.batches) {
      const Requests requests{begins_, schedule_ + batch.first};
      const auto length = static_cast<unsigned>(batch.length), count = static_cast<unsigned>(batch.count);
      launch(pad_kernel, {dim3{length, count}, static_cast<unsigned>(packets)}, requests, packet(x_), packet(padded_));
      layer(launch, padded_, batch.rows(), [&] {
        Pass{tensors(batch.count, batch.length),
             {.mask = {},
              .keys = {static_cast<int>(batch.length), schedule_ + requests_ + batch.first},
              .score = score,
              .order = attention::in_order(batch.length, heads, batch.count)}}
            .run(launch);
      });
      launch(pool_kernel, {dim3{packets / 16, count}, threads}, requests, packet(padded_), pooled_, batch.length);
      if (2 * batch.first < requests_ && 2 * (batch.first + batch.count) >= requests_) launch.mark("half_done");
    }
  }
  attention::Tensors tensors(std::size_t sequences, std::size_t rows) const {
    const auto part = [&](std::size_t i) {
      return attention::rows_first(qkv_ + i * width, sequences, rows, heads, head_size, 3 * heads);
    };
    return {part(0), part(1), part(2), attention::rows_first(attended_, sequences, rows, heads, head_size)};
  }
  // The encoder layer of so many rows; the result is in `padded_`.
  template <class Attend>
  void layer(Launch& launch, const bf16* x, std::size_t rows, const Attend& attend) {
    const Plans& of_rows = plans(rows);
    const Grid norm{static_cast<unsigned>(rows), static_cast<unsigned>(packets)};
    of_rows.qkv.run(launch.stream, x, qkv_weights_, qkv_);
    attend();
    of_rows.out.run(launch.stream, attended_, out_weights_, projected_);
    launch(add_norm_kernel, norm, packet(x), packet(projected_), packet(normed_));
    of_rows.up.run(launch.stream, normed_, up_weights_, up_);
    of_rows.down.run(launch.stream, up_, down_weights_, projected_);
    launch(add_norm_kernel, norm, packet(normed_), packet(projected_), packet(padded_));
  }
  // As the library's heuristic chooses, in all variants.
  const Plans& plans(std::size_t rows) {
    std::unique_ptr<Plans>& plans = plans_[rows];
    const auto problem = [&](std::size_t n, std::size_t k, const bf16* bias, cublasLtEpilogue_t epilogue) {
      return MatmulProblem{.m = rows, .n = n, .k = k, .epilogue = epilogue, .bias = bias};
    };
    if (!plans)
      plans.reset(new Plans{{*lt_, problem(3 * width, width, qkv_bias(), CUBLASLT_EPILOGUE_BIAS)},
                            {*lt_, problem(width, width, out_bias(), CUBLASLT_EPILOGUE_BIAS)},
                            {*lt_, problem(ffn, width, up_bias(), CUBLASLT_EPILOGUE_GELU_BIAS)},
                            {*lt_, problem(width, ffn, down_bias(), CUBLASLT_EPILOGUE_BIAS)}});
    return *plans;
  }
  static const uint4* packet(const bf16* from) { return reinterpret_cast<const uint4*>(from); }
  static uint4* packet(const Scratch<bf16>& to) { return reinterpret_cast<uint4*>(to.get()); }

  std::size_t requests_, batch_;
  std::vector<int> offsets_;
  std::size_t tokens_, most_rows_;
  Input<bf16> x_;
  Input<int> begins_;
  Input<bf16> qkv_weights_, out_weights_, up_weights_, down_weights_, biases_;
  Output<float> pooled_;
  Scratch<bf16> padded_, qkv_, attended_, projected_, normed_, up_;
  Scratch<int> schedule_, host_schedule_;
  Scratch<double> fp64_;
  Opened<CublasLt> lt_;
  std::map<std::size_t, std::unique_ptr<Plans>> plans_;
  std::vector<double> expected_;
};

}  // namespace

extern constinit const Pair length_bucketing{
    .teaches =
        "batches are padded to their longest request; sorting requests by length removes most padding without a new kernel",
    .lesson = "sorted_batches",
    .make = make<LengthBucketing>,
    .baseline = {.name = "arrival_order", .run = call<&LengthBucketing::arrival_order>},
    .optimized = variants({{.name = "sorted_batches", .run = call<&LengthBucketing::sorted_batches>},
                           {.name = "token_budget", .run = call<&LengthBucketing::token_budget>}}),
    .controls = variants({{.name = "packed", .run = call<&LengthBucketing::packed>}}),
    .bound = Bound::compute,
    // Six roundings to bf16 one after the other, of which a mean over tokens averages some, and a GELU by an approximated tanh.
    .tolerance = within(1e-2),
    .needs = {.min_sm = 90, .max_sm = 90, .libraries = {Library::cublaslt}},
    .start = Start::immediate,
    .sizes = sizes({{.name = "requests", .full = 256, .least = 4, .most = 4096},
                    {.name = "batch", .full = 32, .most = 128, .scales = false},
                    {.name = "spread_percent", .full = 79, .least = 0, .most = 150, .scales = false}}),
    .sweep = cases({{"spread_0", "spread_percent=0"},
                    {"spread_40", "spread_percent=40"},
                    {"spread_79", "spread_percent=79"},
                    {"spread_120", "spread_percent=120"},
                    {"batch_8", "batch=8"},
                    {"batch_32", "batch=32"},
                    {"batch_128", "batch=128"}}),
    .edges = cases({{"planted_alone", "requests=4,batch=3"}, {"one_a_batch", "requests=9,batch=1"}}),
};

}  // namespace aisp::ch17
