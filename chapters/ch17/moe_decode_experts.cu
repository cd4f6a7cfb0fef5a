// SPDX-License-Identifier: Apache-2.0
// The experts of a decode step: 16 tokens choose eight of 128 each, so that an expert sees one or two and costs the reading of
// its weights. Products over all experts have static shapes and ask nobody, but a third of what they read no token wants. Kernels
// that find the active experts themselves read the others' weights not at all, and no host waits for a count.
#include <cuda_bf16.h>
#include <aisp/device_attribute.hpp>
#include <aisp/graph.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <string_view>
#include <vector>

#include "expert_rows.cuh"
#include "grouped_cublas.hpp"
#include "moe/index.cuh"
#include "moe/routing.hpp"
#include "moe_decode_reference.cuh"

namespace aisp::ch17 {
namespace {

constexpr unsigned blocks_per_sm = 4;
constexpr int threads = 256;

__device__ float silu(float x) { return x / (1 + __expf(-x)); }

// Partial sums of the warps of a block, one buffer of which is read while the other is written.
template <int tiles>
using Partial = float[row_warps][tiles * 4][device::warp_size];

// Both products of an expert: `gate_up` the first, whose 16 rows are eight of the gate and the same eight of up, so that a lane
// has both of an element. Products of one unit are shared by the warps along K.
template <bool gate_up>
struct Product {
  const uint4* weights;  // [experts][rows][k]
  const uint4* tokens;   // [tokens][k] of gate_up, else [slots][k]
  void* out;             // bf16 [slots][rows / 2] of gate_up, else fp32 [slots][rows]
  int rows, k;
  ExpertCalls calls;

  __device__ int units() const { return rows / 16; }
  __device__ std::size_t row(int unit, int of_unit) const {
    if constexpr (gate_up) return static_cast<std::size_t>(unit * 8 + of_unit % 8 + (of_unit < 8 ? 0 : rows / 2));
    else return static_cast<std::size_t>(unit * 16 + of_unit);
  }

  template <int tiles>
  __device__ void run(int expert, int unit, const int* slots, int count, float* shared) const {
    constexpr int in_flight = tiles > 2 ? 2 : tiles == 2 || !gate_up ? 4 : 8;  // steps of K whose weights a lane has requested
    const int lane = static_cast<int>(threadIdx.x % device::warp_size), warp = static_cast<int>(threadIdx.x / device::warp_size);
    const std::size_t pitch = static_cast<std::size_t>(k / 8);
    const std::size_t place = static_cast<std::size_t>(warp * (k / row_warps) / 8 + lane % 4);
    const uint4* const matrix = weights + static_cast<std::size_t>(expert) * rows * pitch + place;
    int token[tiles];
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
      const int i = t * 8 + lane / 4, slot = count == 0 ? 0 : slots[i < count ? i : 0];
      token[t] = (gate_up ? slot / calls.top_k : slot) * (k / 8) + static_cast<int>(place);
    }
    float sums[tiles][4] = {};
    multiply_rows<tiles, in_flight>(sums, matrix + row(unit, lane / 4) * pitch, matrix + row(unit, lane / 4 + 8) * pitch, tokens,
                                    token, k / row_warps / step_k);
    Partial<tiles>& partial = *reinterpret_cast<Partial<tiles>*>(shared);
#pragma unroll
    for (int t = 0; t < tiles; ++t)
#pragma unroll
      for (int j = 0; j < 4; ++j) partial[warp][t * 4 + j][lane] = sums[t][j];
    __syncthreads();
    const auto sum = [&](int index) {
      return (partial[0][index][lane] + partial[1][index][lane]) + (partial[2][index][lane] + partial[3][index][lane]);
    };
#pragma unroll 1
    for (int index = warp; index < tiles * 4; index += row_warps) {
      const int i = index / 4 * 8 + lane % 4 * 2 + index % 2;
      if (i >= count || (gate_up && index % 4 >= 2)) continue;
      const std::size_t slot = static_cast<std::size_t>(slots[i]);
      if constexpr (gate_up)
        static_cast<bf16*>(out)[slot * (rows / 2) + row(unit, lane / 4)] = __float2bfloat16_rn(silu(sum(index)) * sum(index + 2));
      else static_cast<float*>(out)[slot * rows + row(unit, lane / 4 + index % 4 / 2 * 8)] = sum(index);
    }
  }
};

// An expert of more than 32 tokens is read again for each further 32: from L2, if it is still there.
template <bool gate_up>
__global__ __launch_bounds__(row_threads, blocks_per_sm) void active_rows_kernel(Product<gate_up> product) {
  constexpr int most_tiles = 4, most_tokens = most_tiles * 8;
  __shared__ ActiveExperts active;
  __shared__ float partial[2][row_warps * most_tiles * 4 * device::warp_size];
  active.find(product.calls);
  const int all = active.count * product.units();
  int turn = 0;
  for (int u = static_cast<int>(blockIdx.x); u < all; u += static_cast<int>(gridDim.x)) {
    const int a = u / product.units(), unit = u % product.units(), expert = active.expert[a];
    int first = active.begin[a];
    do {
      const int* const slots = active.slots + first;
      const int count = min(active.begin[a + 1] - first, most_tokens);
      if (count <= 8) product.template run<1>(expert, unit, slots, count, partial[turn]);
      else if (count <= 16) product.template run<2>(expert, unit, slots, count, partial[turn]);
      else product.template run<most_tiles>(expert, unit, slots, count, partial[turn]);
      turn ^= 1;
      first += most_tokens;
    } while (first < active.begin[a + 1]);
  }
}

// out[token] = the sum of its slots' rows times their weights; `row_of(slot, token)` says where a slot's row is.
template <class Rows, class RowOf>
__device__ void weighted_sum(const Rows* rows, const float* weights, bf16* out, int top_k, int hidden, const RowOf& row_of) {
  const int token = static_cast<int>(blockIdx.y), i = static_cast<int>(blockIdx.x * threads + threadIdx.x);
  if (i >= hidden) return;
  float sum = 0;
  for (int slot = token * top_k; slot < (token + 1) * top_k; ++slot)
    sum = fmaf(weights[slot], static_cast<float>(rows[static_cast<std::size_t>(row_of(slot, token)) * hidden + i]), sum);
  out[static_cast<std::size_t>(token) * hidden + i] = __float2bfloat16_rn(sum);
}
__global__ void combine_slots_kernel(const float* rows, const float* weights, bf16* out, int top_k, int hidden) {
  weighted_sum(rows, weights, out, top_k, hidden, [](int slot, int) { return slot; });
}
__global__ void combine_rows_kernel(const bf16* rows, const int* row_of_slot, const float* weights, bf16* out, int top_k,
                                    int hidden) {
  weighted_sum(rows, weights, out, top_k, hidden, [=](int slot, int) { return row_of_slot[slot]; });
}
// Rows of all experts: [expert][token].
__global__ void combine_all_kernel(const bf16* rows, const int* experts_of, const float* weights, bf16* out, int top_k,
                                   int hidden) {
  weighted_sum(rows, weights, out, top_k, hidden,
               [=](int slot, int token) { return experts_of[slot] * static_cast<int>(gridDim.y) + token; });
}

__global__ void swiglu_kernel(const bf16* gate_up, bf16* out, int ffn) {
  const int i = static_cast<int>(blockIdx.x * threads + threadIdx.x);
  if (i >= ffn) return;
  const bf16* const row = gate_up + std::size_t{blockIdx.y} * 2 * ffn;
  out[std::size_t{blockIdx.y} * ffn + i] = __float2bfloat16_rn(silu(__bfloat162float(row[i])) * __bfloat162float(row[ffn + i]));
}
__global__ void gather_tokens_kernel(const uint4* tokens, const int* slot_of_row, uint4* rows, int top_k, int packets) {
  const std::size_t token = static_cast<std::size_t>(slot_of_row[blockIdx.x] / top_k);
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += threads)
    rows[std::size_t{blockIdx.x} * packets + i] = tokens[token * packets + i];
}

class MoeDecodeExperts final : public Workload {
 public:
  explicit MoeDecodeExperts(Setup& setup)
      : tokens_{setup.size("tokens")},
        experts_{setup.size("experts")},
        top_k_{setup.size("top_k")},
        hidden_{setup.size("hidden")},
        ffn_{setup.size("ffn")},
        slots_{tokens_ * top_k_},
        chosen_{chosen(static_cast<moe::Routing>(setup.size("routing")))},
        grouped_{moe::group_by_expert(chosen_, experts_)},
        x_{setup.input<bf16>(tokens_ * hidden_, normal(0, 1), {.name = "tokens"})},
        experts_of_{setup.input<int>(
            slots_, [this](std::span<int> to, std::uint64_t) { std::copy(chosen_.begin(), chosen_.end(), to.begin()); },
            {.name = "experts of slots", .constant = true})},
        shares_{setup.input<float>(slots_, uniform(0.05f, 0.25f), {.name = "weights of slots"})},
        gate_up_{setup.input<bf16>(experts_ * 2 * ffn_ * hidden_, normal(0, 0.02f), {.name = "gate and up", .constant = true})},
        down_{setup.input<bf16>(experts_ * hidden_ * ffn_, normal(0, 0.02f), {.name = "down", .constant = true})},
        out_{setup.output<bf16>(tokens_ * hidden_, {.name = "combined"})},
        of_slots_{setup.scratch<bf16>(slots_ * ffn_)},
        slot_rows_{setup.scratch<float>(slots_ * hidden_)},
        all_gate_up_{setup.scratch<bf16>(experts_ * tokens_ * 2 * ffn_)},
        all_activated_{setup.scratch<bf16>(experts_ * tokens_ * ffn_)},
        all_rows_{setup.scratch<bf16>(experts_ * tokens_ * hidden_)},
        index_{setup.scratch<int>(3 * slots_ + experts_ * tiles() + experts_ + 2)},
        host_offsets_{setup.scratch<int>(experts_ + 1, {.memory = Memory::pinned})},
        reference_{setup.scratch<double>(slots_ * ffn_ + tokens_ * hidden_)},
        cublas_{setup},
        grouped_up_{setup, 2 * ffn_, hidden_, grouped_.offsets},
        grouped_down_{setup, hidden_, ffn_, grouped_.offsets} {
    if (slots_ > most_slots || tokens_ > 64 || experts_ > most_decode_experts)
      throw Unsupported{"a decode step of 64 tokens, 512 slots and 128 experts at most"};
  }

  Cost cost() const override { return reading(active()); }
  Cost variant_cost(std::string_view variant) const override { return reading(variant == "all_experts" ? experts_ : active()); }
  void compute_reference(Launch& launch) override {
    const decode::Experts experts{
        x_, gate_up_, down_, experts_of_, shares_, static_cast<int>(hidden_), static_cast<int>(ffn_), static_cast<int>(top_k_)};
    double* const activated = reference_;
    double* const rows = activated + slots_ * ffn_;
    launch(decode::activated_kernel, {dim3{static_cast<unsigned>(ffn_), static_cast<unsigned>(slots_)}, 32}, experts, activated);
    launch(decode::combined_kernel, {dim3{static_cast<unsigned>(hidden_), static_cast<unsigned>(tokens_)}, 32}, experts,
           activated, rows);
    expected_.resize(tokens_ * hidden_);
    check(cudaMemcpyAsync(expected_.data(), rows, expected_.size() * sizeof(double), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
  }
  double expected(std::size_t i) const override { return expected_[i]; }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("token rate", static_cast<double>(tokens_), "tokens/s");
  }

  void all_batched(Launch& launch) {
    batched(launch.stream, 2 * ffn_, hidden_, gate_up_, x_, 0, all_gate_up_);
    swiglu(launch.stream, all_gate_up_, all_activated_, experts_ * tokens_);
    batched(launch.stream, hidden_, ffn_, down_, all_activated_, tokens_ * ffn_, all_rows_);
    launch(combine_all_kernel, combining(), all_rows_, experts_of_, shares_, out_, top_k_, hidden_);
  }
  void device_list(Launch& launch) { stream_weights(launch, false); }
  void all_experts(Launch& launch) { stream_weights(launch, true); }

  void expert_loop(Launch& launch) {
    sort_tokens(launch.stream);
    check(cudaMemcpyAsync(host_offsets_, offsets(), host_offsets_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
    loop(launch.stream, host_offsets_);
  }
  void capture_loop(Launch& launch) {
    clear_done(launch);
    const auto work = [this](cudaStream_t stream) {
      sort_tokens(stream);
      loop(stream, grouped_.offsets.data());
    };
    work(launch.stream);
    graph_.capture(launch.stream, work);
  }
  void loop_graph(Launch& launch) { graph_.launch(launch.stream); }
  // The library's grouped products, told the counts before.
  void point_groups(Launch& launch) {
    clear_done(launch);
    grouped_up_.set(all_rows_, gate_up_, all_gate_up_);
    grouped_down_.set(all_activated_, down_, all_rows_);
  }
  void cublas_grouped(Launch& launch) {
    sort_tokens(launch.stream);
    grouped_up_.run(launch.stream);
    swiglu(launch.stream, all_gate_up_, all_activated_, slots_);
    grouped_down_.run(launch.stream);
    launch(combine_rows_kernel, combining(), all_rows_, row_of_slot(), shares_, out_, top_k_, hidden_);
  }
  void clear_done(Launch& launch) { check(cudaMemsetAsync(done(), 0, sizeof(unsigned), launch.stream)); }

 private:
  std::vector<int> chosen(moe::Routing routing) const {
    std::vector<int> experts_of(slots_);
    moe::choose_experts(experts_of, {.experts = experts_, .top_k = top_k_, .routing = routing}, 1);
    return experts_of;
  }
  std::size_t active() const {
    std::size_t count = 0;
    for (std::size_t e = 0; e < experts_; ++e) count += grouped_.offsets[e + 1] > grouped_.offsets[e] ? 1 : 0;
    return count;
  }
  // The weights of so many experts, tokens and results; what passes between the two products stays in L2.
  Cost reading(std::size_t experts) const {
    const auto of_expert = static_cast<double>(3 * ffn_ * hidden_);
    return {.flops = 2 * static_cast<double>(slots_) * of_expert,
            .math = Math::bf16,
            .bytes = static_cast<double>(experts) * of_expert * sizeof(bf16) + static_cast<double>(x_.bytes() + out_.bytes())};
  }
  std::size_t tiles() const { return (slots_ + moe::tile_slots - 1) / moe::tile_slots; }
  int* ranks() const { return index_; }
  int* slot_of_row() const { return index_ + slots_; }
  int* row_of_slot() const { return index_ + 2 * slots_; }
  int* starts() const { return index_ + 3 * slots_; }
  int* offsets() const { return starts() + experts_ * tiles(); }
  unsigned* done() const { return reinterpret_cast<unsigned*>(offsets() + experts_ + 1); }
  Grid combining() const {
    return {dim3{static_cast<unsigned>((hidden_ + threads - 1) / threads), static_cast<unsigned>(tokens_)}, threads};
  }

  void stream_weights(Launch& launch, bool all) {
    const ExpertCalls calls{experts_of_, static_cast<int>(slots_), static_cast<int>(experts_), static_cast<int>(top_k_), all};
    const Grid grid{multiprocessors() * blocks_per_sm, row_threads};
    const auto packets = [](const bf16* from) { return reinterpret_cast<const uint4*>(from); };
    launch(active_rows_kernel<true>, grid,
           Product<true>{packets(gate_up_), packets(x_), of_slots_.get(), static_cast<int>(2 * ffn_), static_cast<int>(hidden_),
                         calls});
    launch(active_rows_kernel<false>, grid,
           Product<false>{packets(down_), packets(of_slots_), slot_rows_.get(), static_cast<int>(hidden_), static_cast<int>(ffn_),
                          calls});
    launch(combine_slots_kernel, combining(), slot_rows_, shares_, out_, top_k_, hidden_);
  }

  // For each expert e: out[e] = tokens[e] W[e]^T, with `rows` rows of W.
  void batched(cudaStream_t stream, std::size_t rows, std::size_t k, const bf16* weights, const bf16* tokens, std::size_t stride,
               bf16* out) {
    using Call = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*, const void*,
                                cudaDataType_t, int, long long, const void*, cudaDataType_t, int, long long, const void*, void*,
                                cudaDataType_t, int, long long, int, cublasComputeType_t, cublasGemmAlgo_t);
    const auto gemm = Cublas::function<Call>("cublasGemmStridedBatchedEx");
    const float one = 1, zero = 0;
    const int m = static_cast<int>(rows), n = static_cast<int>(tokens_), depth = static_cast<int>(k);
    cublas_->use(stream);
    check(gemm(cublas_->handle(), CUBLAS_OP_T, CUBLAS_OP_N, m, n, depth, &one, weights, CUDA_R_16BF, depth,
               static_cast<long long>(rows * k), tokens, CUDA_R_16BF, depth, static_cast<long long>(stride), &zero, out,
               CUDA_R_16BF, m, static_cast<long long>(tokens_ * rows), static_cast<int>(experts_), CUBLAS_COMPUTE_32F,
               CUBLAS_GEMM_DEFAULT));
  }
  void swiglu(cudaStream_t stream, const bf16* gate_up, bf16* out, std::size_t rows) const {
    launch_kernel(stream, swiglu_kernel,
                  {dim3{static_cast<unsigned>((ffn_ + threads - 1) / threads), static_cast<unsigned>(rows)}, threads}, gate_up,
                  out, ffn_);
  }

  // Tokens in the order of their experts, in `all_rows_`, and the offsets of the experts.
  void sort_tokens(cudaStream_t stream) const {
    const moe::Slots slots{experts_of_, static_cast<int>(slots_), static_cast<int>(experts_), ranks(), starts(), offsets(),
                           done()};
    const Grid grid{static_cast<unsigned>(tiles()), moe::tile_slots};
    launch_kernel(stream, moe::rank_slots_kernel, grid, slots);
    launch_kernel(stream, moe::place_slots_kernel, grid, slots, slot_of_row(), row_of_slot());
    launch_kernel(stream, gather_tokens_kernel, {static_cast<unsigned>(slots_), threads},
                  reinterpret_cast<const uint4*>(x_.get()), slot_of_row(), reinterpret_cast<uint4*>(all_rows_.get()), top_k_,
                  hidden_ / 8);
  }
  // Each active expert in turn, from where the host knows that its rows begin. Results take the rows' place.
  void loop(cudaStream_t stream, const int* begins) {
    for (std::size_t e = 0; e < experts_; ++e) {
      const auto row = static_cast<std::size_t>(begins[e]), count = static_cast<std::size_t>(begins[e + 1]) - row;
      if (count == 0) continue;
      bf16* const rows = all_rows_ + row * hidden_;
      product(stream, count, 2 * ffn_, hidden_, rows, gate_up_ + e * 2 * ffn_ * hidden_, all_gate_up_);
      swiglu(stream, all_gate_up_, all_activated_, count);
      product(stream, count, hidden_, ffn_, all_activated_, down_ + e * hidden_ * ffn_, rows);
    }
    launch_kernel(stream, combine_rows_kernel, combining(), all_rows_, row_of_slot(), shares_, out_, top_k_, hidden_);
  }
  void product(cudaStream_t stream, std::size_t count, std::size_t rows, std::size_t k, const bf16* tokens, const bf16* weights,
               bf16* out) {
    const auto gemm = Cublas::function<Cublas::GemmEx>("cublasGemmEx");
    const float one = 1, zero = 0;
    const int m = static_cast<int>(rows), n = static_cast<int>(count), depth = static_cast<int>(k);
    cublas_->use(stream);
    check(gemm(cublas_->handle(), CUBLAS_OP_T, CUBLAS_OP_N, m, n, depth, &one, weights, CUDA_R_16BF, depth, tokens, CUDA_R_16BF,
               depth, &zero, out, CUDA_R_16BF, m, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }

  std::size_t tokens_, experts_, top_k_, hidden_, ffn_, slots_;
  std::vector<int> chosen_;
  moe::Grouped grouped_;
  Input<bf16> x_;
  Input<int> experts_of_;
  Input<float> shares_;
  Input<bf16> gate_up_, down_;  // [experts][2 ffn][hidden], [experts][hidden][ffn]
  Output<bf16> out_;
  Scratch<bf16> of_slots_;    // what SwiGLU made, [slots][ffn]
  Scratch<float> slot_rows_;  // [slots][hidden]
  Scratch<bf16> all_gate_up_, all_activated_, all_rows_;
  Scratch<int> index_, host_offsets_;
  Scratch<double> reference_;
  Opened<Cublas> cublas_;
  GroupedCublas grouped_up_, grouped_down_;
  Graph graph_;
  std::vector<double> expected_;
};

constexpr Needs cublas{.libraries = {Library::cublas}};

}  // namespace

extern constinit const Pair moe_decode_experts{
    .teaches =
        "at decode an expert costs the reading of its weights: kernels that find the active experts themselves read those only",
    .lesson = "device_list",
    .make = make<MoeDecodeExperts>,
    .baseline = {.name = "all_batched", .run = call<&MoeDecodeExperts::all_batched>, .needs = cublas},
    .optimized = variants({{.name = "device_list", .run = call<&MoeDecodeExperts::device_list>}}),
    .controls = variants({{.name = "all_experts", .run = call<&MoeDecodeExperts::all_experts>, .same_bits_as = "device_list"},
                          {.name = "expert_loop",
                           .run = call<&MoeDecodeExperts::expert_loop>,
                           .prepare = call<&MoeDecodeExperts::clear_done>,
                           .needs = cublas},
                          {.name = "loop_graph",
                           .run = call<&MoeDecodeExperts::loop_graph>,
                           .prepare = call<&MoeDecodeExperts::capture_loop>,
                           .needs = cublas}}),
    .libraries = variants({{.name = "cublas_grouped",
                            .run = call<&MoeDecodeExperts::cublas_grouped>,
                            .prepare = call<&MoeDecodeExperts::point_groups>,
                            .needs = cublas}}),
    .bound = Bound::memory,
    // Gate, up, their product and the result are rounded to bf16 one after the other: sqrt(4) roundings of 1.6e-3, of which sums
    // average some.
    .tolerance = within(5e-3),
    .start = Start::immediate,
    .sizes = sizes({{.name = "tokens", .full = 16, .most = 64, .scales = false},
                    {.name = "experts", .full = 128, .multiple = 8, .most = 128},
                    {.name = "top_k", .full = 8, .most = 8, .scales = false},
                    {.name = "hidden", .full = 4096, .multiple = 1024, .most = 8192, .scales = false},
                    {.name = "ffn", .full = 1536, .multiple = 512, .most = 8192, .scales = false},
                    {.name = "routing", .full = 0, .least = 0, .most = 3, .scales = false}}),
    .sweep = cases({{"tokens_1", "tokens=1"}, {"tokens_4", "tokens=4"}, {"tokens_16", "tokens=16"}, {"tokens_64", "tokens=64"}}),
    .edges = cases({{"one_token", "tokens=1,experts=16,hidden=1024,ffn=512"},
                    {"same_experts", "experts=16,hidden=1024,ffn=512,routing=3"},
                    {"all_active", "tokens=64,experts=16,hidden=1024,ffn=512"},
                    {"full_experts", "tokens=64,experts=16,hidden=1024,ffn=512,routing=3"},
                    {"planted", "tokens=64,experts=32,hidden=1024,ffn=512,routing=2"}}),
};

}  // namespace aisp::ch17
