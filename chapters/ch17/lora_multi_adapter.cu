// SPDX-License-Identifier: Apache-2.0
// Eight projections of 1024 tokens whose requests use 64 LoRA adapters of rank 16. A batched product with a pointer to its
// adapter for every token reads an adapter once for each of its tokens, and half a gigabyte of it per projection has to come from
// L2. Sorted by adapter on the GPU, up to 16 tokens are the rows of one product (lora_segments.cuh), which reads an adapter once.
#include <aisp/dispatch.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "grouped_cublas.hpp"
#include "lora_segments.cuh"
#include "moe/ragged_groups.hpp"

namespace aisp::ch17 {
namespace {

constexpr unsigned threads = 256;

// Computes where each token's adapter lies, for one projection; tokens without one have the last, which is zero.
__global__ __launch_bounds__(threads) void point_kernel(const int* adapter_of, unsigned tokens, int adapters, const bf16* a,
                                                        const bf16* b, std::size_t a_elements, std::size_t b_elements,
                                                        const void** to_a, const void** to_b) {
  const unsigned token = blockIdx.x * threads + threadIdx.x;
  if (token >= tokens) return;
  const int adapter = adapter_of[token];
  const auto place = static_cast<std::size_t>(adapter < 0 ? adapters : adapter);
  to_a[token] = a + place * a_elements;
  to_b[token] = b + place * b_elements;
}

// Rows order[i] of `from`, one after the other; a block has a row.
__global__ __launch_bounds__(threads) void gather_tokens_kernel(const uint4* __restrict__ from, const int* __restrict__ order,
                                                                uint4* __restrict__ to, unsigned packets) {
  const std::size_t token = static_cast<unsigned>(order[blockIdx.x]);
  for (unsigned i = threadIdx.x; i < packets; i += threads) to[std::size_t{blockIdx.x} * packets + i] = from[token * packets + i];
}
// y[order[i]] += delta[i].
__global__ __launch_bounds__(threads) void add_tokens_kernel(const uint4* __restrict__ delta, const int* __restrict__ order,
                                                             uint4* __restrict__ y, unsigned packets) {
  const std::size_t token = static_cast<unsigned>(order[blockIdx.x]);
  for (unsigned i = threadIdx.x; i < packets; i += threads) {
    float sum[shared::packet], more[shared::packet];
    shared::unpack(y[token * packets + i], sum);
    shared::unpack(delta[std::size_t{blockIdx.x} * packets + i], more);
#pragma unroll
    for (int j = 0; j < shared::packet; ++j) sum[j] += more[j];
    y[token * packets + i] = shared::pack(sum);
  }
}

class LoraMultiAdapter final : public Workload {
 public:
  explicit LoraMultiAdapter(Setup& setup)
      : tokens_{setup.size("tokens")},
        adapters_{setup.size("adapters")},
        layers_{setup.size("projections")},
        in_{setup.size("in")},
        out_{setup.size("out")},
        rank_{setup.size("rank")},
        counts_{counts()},
        adapter_on_host_{adapters_of_tokens()},
        x_{setup.input<bf16>(layers_ * tokens_ * in_, uniform(-1, 1), {.name = "x"})},
        // Scaled so that x w has a variance near one, and so has what the adapters add.
        w_{setup.input<bf16>(layers_ * out_ * in_, small(), {.name = "weights"})},
        a_{setup.input<bf16>(layers_ * (adapters_ + 1) * rank_ * in_, adapter_rows(small(), in_, setup),
                             {.name = "adapters, down"})},
        b_{setup.input<bf16>(layers_ * (adapters_ + 1) * out_ * rank_,
                             uniform(-0.43f, 0.43f).set(0, at(Axis{out_ * rank_, adapters_ + 1}, adapters_)),
                             {.name = "adapters, up"})},
        adapter_of_{setup.input<int>(tokens_, moe::these(adapter_on_host_), {.name = "adapters of tokens", .constant = true})},
        y_{setup.output<bf16>(layers_ * tokens_ * out_, {.name = "y"})},
        low_{setup.scratch<bf16>(tokens_ * rank_, {.name = "x a"})},
        order_{setup.scratch<int>(tokens_, {.name = "tokens by adapter"})},
        tiles_{setup.scratch<int4>(most_tiles(), {.name = "tiles"})},
        tile_count_{setup.scratch<int>(1, {.name = "number of tiles"})},
        pointers_{setup.scratch<const void*>(layers_ * 5 * tokens_, {.name = "pointers of tokens"})},
        gathered_{setup.scratch<bf16>(tokens_ * in_, {.name = "gathered x"})},
        delta_{setup.scratch<bf16>(tokens_ * out_, {.name = "what adapters add"})},
        base_{setup, {.m = tokens_, .n = out_, .k = in_, .b_is_transposed = true}},
        cublas_{setup},
        reproducible_{setup.reproducible()},
        side_{setup.stream()},
        forked_{setup.event()},
        shrunk_{setup.event()} {
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      shrinks_.emplace_back(setup, rank_, in_, moe::offsets_of(counts_));
      expands_.emplace_back(setup, out_, rank_, moe::offsets_of(counts_));
    }
  }

  Cost cost() const override {
    const double used = static_cast<double>(std::ranges::count_if(counts_, [](int count) { return count > 0; })) /
                        static_cast<double>(adapters_ + 1);
    return {
        .flops = 2.0 * static_cast<double>(layers_ * tokens_) * static_cast<double>(out_ * in_) +
                 2.0 * static_cast<double>(layers_ * rank_) * static_cast<double>(with_adapter() * (in_ + out_)),
        .math = Math::bf16,
        .bytes = static_cast<double>(x_.bytes() + w_.bytes() + y_.bytes()) + used * static_cast<double>(a_.bytes() + b_.bytes())};
  }
  double expected(std::size_t i) const override {
    const std::size_t row = i / out_, column = i % out_, layer = row / tokens_;
    const int adapter = adapter_on_host_[row % tokens_];
    double sum = 0;
    for (std::size_t k = 0; k < in_; ++k) sum += x_.host(row * in_ + k) * w_.host((layer * out_ + column) * in_ + k);
    if (adapter < 0) return sum;
    const std::size_t place = layer * (adapters_ + 1) + static_cast<std::size_t>(adapter);
    for (std::size_t r = 0; r < rank_; ++r) {
      double low = 0;
      for (std::size_t k = 0; k < in_; ++k) low += x_.host(row * in_ + k) * a_.host((place * rank_ + r) * in_ + k);
      sum += low * b_.host((place * out_ + column) * rank_ + r);
    }
    return sum;
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens", static_cast<double>(tokens_), "tokens/s");
  }

  void tune(Launch& launch) {
    if (!reproducible_) base_.tune(launch, x_, w_, y_);
  }
  void base_alone(Launch& launch) {
    for (std::size_t layer = 0; layer < layers_; ++layer) multiply_base(launch, layer);
  }

  void list_pointers(Launch& launch) {
    tune(launch);
    std::vector<const void*> fixed(3 * tokens_);
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      for (std::size_t token = 0; token < tokens_; ++token) {
        fixed[token] = x_of(layer) + token * in_;
        fixed[tokens_ + token] = low_.get() + token * rank_;
        fixed[2 * tokens_ + token] = y_of(layer) + token * out_;
      }
      check(cudaMemcpy(pointers_of(layer), fixed.data(), fixed.size() * sizeof(void*), cudaMemcpyHostToDevice));
    }
  }
  void pointer_a_token(Launch& launch) {
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      const void** const list = pointers_of(layer);
      launch(point_kernel, {blocks(tokens_), threads}, adapter_of_, tokens_, adapters_, a_of(layer), b_of(layer), rank_ * in_,
             out_ * rank_, list + 3 * tokens_, list + 4 * tokens_);
      multiply_base(launch, layer);
      // Column-major: low^T = a x^T and y^T += b low^T, with one column each.
      batched(launch, rank_, in_, list + 3 * tokens_, list, list + tokens_, 0);
      batched(launch, out_, rank_, list + 4 * tokens_, list + tokens_, list + 2 * tokens_, 1);
    }
  }

  void grouped(Launch& launch) {
    sort(launch);
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      multiply_base(launch, layer);
      shrink(launch.stream, layer);
      expand(launch, layer);
    }
  }
  // A projection's input is what the one before it has left, so that its shrink can begin when that has ended.
  void overlapped(Launch& launch) {
    sort(launch);
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      check(cudaEventRecord(forked_, launch.stream));
      check(cudaStreamWaitEvent(side_, forked_));
      shrink(side_, layer);
      check(cudaEventRecord(shrunk_, side_));
      multiply_base(launch, layer);
      check(cudaStreamWaitEvent(launch.stream, shrunk_));
      expand(launch, layer);
    }
  }

  void adapter_loop(Launch& launch) {
    sort(launch);
    const std::vector<int> offsets = moe::offsets_of(counts_);
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      multiply_base(launch, layer);
      for (std::size_t adapter = 0; adapter < adapters_; ++adapter) {
        const auto count = static_cast<unsigned>(counts_[adapter]);
        if (count == 0) continue;
        const int* const order = order_.get() + offsets[adapter];
        launch(gather_tokens_kernel, {count, threads}, packets(x_of(layer)), order, reinterpret_cast<uint4*>(gathered_.get()),
               in_ / 8);
        one(launch, rank_, count, in_, a_of(layer) + adapter * rank_ * in_, gathered_, low_);
        one(launch, out_, count, rank_, b_of(layer) + adapter * out_ * rank_, low_, delta_);
        launch(add_tokens_kernel, {count, threads}, packets(delta_), order, reinterpret_cast<uint4*>(y_of(layer)), out_ / 8);
      }
    }
  }
  void list_groups(Launch& launch) {
    tune(launch);
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      shrinks_[layer].set(gathered_, a_of(layer), low_);
      expands_[layer].set(low_, b_of(layer), delta_);
    }
  }
  void cublas_grouped(Launch& launch) {
    sort(launch);
    const auto rows = static_cast<unsigned>(with_adapter());
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      multiply_base(launch, layer);
      if (rows == 0) continue;
      launch(gather_tokens_kernel, {rows, threads}, packets(x_of(layer)), order_, reinterpret_cast<uint4*>(gathered_.get()),
             in_ / 8);
      shrinks_[layer].run(launch.stream);
      expands_[layer].run(launch.stream);
      launch(add_tokens_kernel, {rows, threads}, packets(delta_), order_, reinterpret_cast<uint4*>(y_of(layer)), out_ / 8);
    }
  }

 private:
  static unsigned blocks(std::size_t count) { return static_cast<unsigned>((count + threads - 1) / threads); }
  static const uint4* packets(const bf16* from) { return reinterpret_cast<const uint4*>(from); }
  Pattern small() const {
    const float largest = 3 / std::sqrt(static_cast<float>(in_));
    return uniform(-largest, largest);
  }
  // The last adapter is that of tokens without one. With mixed ranks every adapter's second half is empty but the first one's.
  Pattern adapter_rows(Pattern pattern, std::size_t row, Setup& setup) const {
    if (setup.size("mixed_ranks") == 1)
      pattern = pattern.set(0, at(Axis{row, rank_}, rank_ / 2, rank_ / 2), at(Axis{rank_ * row, adapters_ + 1}, 1, adapters_));
    return pattern.set(0, at(Axis{rank_ * row, adapters_ + 1}, adapters_));
  }
  // Adapters with no token, one, 17 and 256, the others by Zipf's law; one token in 32 has none.
  std::vector<int> counts() const {
    constexpr int planted[] = {0, 1, 17, 256};
    auto left = static_cast<int>(tokens_ - tokens_ / 32);
    std::vector<int> counts;
    for (const int count : planted)
      if (adapters_ >= 8) left -= counts.emplace_back(std::min(count, left / 2));
    const std::size_t others = adapters_ - counts.size();
    const double most_over_mean = static_cast<double>(others) / harmonic(others);
    const std::vector<int> drawn = moe::skewed_counts(static_cast<std::size_t>(left), others, most_over_mean, 5);
    counts.insert(counts.end(), drawn.begin(), drawn.end());
    return counts;
  }
  static double harmonic(std::size_t count) {
    double sum = 0;
    for (std::size_t i = 1; i <= count; ++i) sum += 1 / static_cast<double>(i);
    return sum;
  }
  std::vector<int> adapters_of_tokens() const {
    std::vector<int> adapters;
    for (std::size_t adapter = 0; adapter < adapters_; ++adapter)
      adapters.insert(adapters.end(), static_cast<std::size_t>(counts_[adapter]), static_cast<int>(adapter));
    adapters.resize(tokens_, -1);
    for (std::size_t i = tokens_; i > 1; --i) std::swap(adapters[i - 1], adapters[random_bits(7, i) % i]);
    return adapters;
  }
  std::size_t with_adapter() const { return static_cast<std::size_t>(std::accumulate(counts_.begin(), counts_.end(), 0)); }
  std::size_t most_tiles() const { return tokens_ / tile_tokens + adapters_; }

  const bf16* x_of(std::size_t layer) const { return x_ + layer * tokens_ * in_; }
  bf16* y_of(std::size_t layer) const { return y_ + layer * tokens_ * out_; }
  const bf16* a_of(std::size_t layer) const { return a_ + layer * (adapters_ + 1) * rank_ * in_; }
  const bf16* b_of(std::size_t layer) const { return b_ + layer * (adapters_ + 1) * out_ * rank_; }
  const void** pointers_of(std::size_t layer) const { return pointers_.get() + layer * 5 * tokens_; }
  Segments segments() const { return {order_, tiles_, tile_count_}; }

  void multiply_base(Launch& launch, std::size_t layer) const {
    const bf16* const w = w_ + layer * out_ * in_;
    if (reproducible_) base_.run(launch, x_of(layer), w, y_of(layer));
    else base_.run_tuned(launch, x_of(layer), w, y_of(layer));
  }
  void sort(Launch& launch) const {
    launch(sort_by_adapter_kernel, {1, most_adapters}, adapter_of_, tokens_, adapters_, segments());
  }
  void shrink(cudaStream_t stream, std::size_t layer) const {
    dispatch<16, 32, 64>("rank", rank_, [&]<int rank>() {
      launch_kernel(stream, shrink_kernel<rank>, {static_cast<unsigned>(most_tiles()), shrink_threads}, x_of(layer), a_of(layer),
                    segments(), low_, in_);
    });
  }
  void expand(Launch& launch, std::size_t layer) const {
    const dim3 grid{static_cast<unsigned>(most_tiles()), static_cast<unsigned>((out_ + expand_columns - 1) / expand_columns)};
    dispatch<16, 32, 64>("rank", rank_, [&]<int rank>() {
      launch(expand_kernel<rank>, {grid, expand_threads}, low_, b_of(layer), segments(), y_of(layer), out_);
    });
  }
  // For each token: c[m] = a[m][k] b[k] + beta c[m].
  void batched(Launch& launch, std::size_t m, std::size_t k, const void** a, const void** b, const void** c, float beta) {
    const float one = 1;
    const int rows = static_cast<int>(m), depth = static_cast<int>(k);
    cublas_->use(launch.stream);
    check(Cublas::function<Batched>("cublasGemmBatchedEx")(
        cublas_->handle(), CUBLAS_OP_T, CUBLAS_OP_N, rows, 1, depth, &one, a, CUDA_R_16BF, depth, b, CUDA_R_16BF, depth, &beta,
        const_cast<void* const*>(c), CUDA_R_16BF, rows, static_cast<int>(tokens_), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }
  // c[count][m] = b[count][k] a[m][k]^T.
  void one(Launch& launch, std::size_t m, unsigned count, std::size_t k, const bf16* a, const bf16* b, bf16* c) {
    const float alpha = 1, beta = 0;
    const int rows = static_cast<int>(m), depth = static_cast<int>(k);
    cublas_->use(launch.stream);
    check(Cublas::function<Cublas::GemmEx>("cublasGemmEx")(
        cublas_->handle(), CUBLAS_OP_T, CUBLAS_OP_N, rows, static_cast<int>(count), depth, &alpha, a, CUDA_R_16BF, depth, b,
        CUDA_R_16BF, depth, &beta, c, CUDA_R_16BF, rows, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }
  // Spelled out, because the header overloads the name.
  using Batched = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                                 const void* const*, cudaDataType_t, int, const void* const*, cudaDataType_t, int, const void*,
                                 void* const*, cudaDataType_t, int, int, cublasComputeType_t, cublasGemmAlgo_t);

  std::size_t tokens_, adapters_, layers_, in_, out_, rank_;
  std::vector<int> counts_, adapter_on_host_;
  Input<bf16> x_, w_, a_, b_;  // w[out][in], a[adapter][rank][in], b[adapter][out][rank]
  Input<int> adapter_of_;
  Output<bf16> y_;
  Scratch<bf16> low_;
  Scratch<int> order_;
  Scratch<int4> tiles_;
  Scratch<int> tile_count_;
  Scratch<const void*> pointers_;  // of a projection: x, low, y, a, b
  Scratch<bf16> gathered_, delta_;
  LibraryMatmul base_;
  Opened<Cublas> cublas_;
  bool reproducible_;
  cudaStream_t side_;
  cudaEvent_t forked_, shrunk_;
  std::vector<GroupedCublas> shrinks_, expands_;
};

constexpr Needs by_cublaslt{.libraries = {Library::cublaslt}};
constexpr Needs by_both{.libraries = {Library::cublaslt, Library::cublas}};
constexpr KernelLimits no_spills{.local_bytes = 0};

}  // namespace

extern constinit const Pair lora_multi_adapter{
    .teaches = "tokens sorted by adapter read it once for up to 16 of them instead of once for each token",
    .lesson = "grouped",
    .make = make<LoraMultiAdapter>,
    .baseline = {.name = "pointer_a_token",
                 .run = call<&LoraMultiAdapter::pointer_a_token>,
                 .prepare = call<&LoraMultiAdapter::list_pointers>,
                 .needs = by_both},
    .optimized = variants({{.name = "grouped",
                            .run = call<&LoraMultiAdapter::grouped>,
                            .prepare = call<&LoraMultiAdapter::tune>,
                            .needs = by_cublaslt,
                            .kernels = no_spills}}),
    // The first of the low-rank products beside the base product; what PEFT does, adapter by adapter; and the base products,
    // which no kernel for adapters can make faster.
    .controls = variants({{.name = "overlapped",
                           .run = call<&LoraMultiAdapter::overlapped>,
                           .prepare = call<&LoraMultiAdapter::tune>,
                           .needs = by_cublaslt,
                           .same_bits_as = "grouped",
                           .kernels = no_spills},
                          {.name = "adapter_loop",
                           .run = call<&LoraMultiAdapter::adapter_loop>,
                           .prepare = call<&LoraMultiAdapter::tune>,
                           .needs = by_both},
                          {.name = "base_alone",
                           .run = call<&LoraMultiAdapter::base_alone>,
                           .prepare = call<&LoraMultiAdapter::tune>,
                           .needs = by_cublaslt,
                           .outputs = no_outputs}}),
    .libraries = variants({{.name = "cublas_grouped",
                            .run = call<&LoraMultiAdapter::cublas_grouped>,
                            .prepare = call<&LoraMultiAdapter::list_groups>,
                            .needs = by_both}}),
    .bound = Bound::compute,
    // y is rounded to bf16 before the adapters' part is added and once more after; that part's own factors are rounded, too.
    .tolerance = within(5e-3),
    .needs = {.min_sm = 80},
    .sizes = sizes({{.name = "tokens", .full = 1024},
                    {.name = "adapters", .full = 64, .most = 512, .scales = false},
                    {.name = "projections", .full = 8, .most = 16, .scales = false},
                    {.name = "in", .full = 4096, .multiple = 256, .most = 16384, .scales = false},
                    {.name = "out", .full = 14336, .multiple = 128, .most = 16384, .scales = false},
                    {.name = "rank", .full = 16, .multiple = 16, .most = 64, .scales = false},
                    option("mixed_ranks")}),
    .sweep = cases({{"tokens_64", "tokens=64"},
                    {"tokens_256", "tokens=256"},
                    {"tokens_1024", "tokens=1024"},
                    {"tokens_4096", "tokens=4096"},
                    {"adapters_1", "adapters=1"},
                    {"adapters_256", "adapters=256"}}),
    .edges = cases({{"one_token", "tokens=1,adapters=3,projections=1,in=256,out=128"},
                    {"ranks_8_and_16", "tokens=200,adapters=9,projections=2,in=512,out=640,mixed_ranks=1"},
                    {"rank_64", "tokens=777,adapters=12,projections=1,in=512,out=384,rank=64,mixed_ranks=1"}}),
};

}  // namespace aisp::ch17
