// SPDX-License-Identifier: Apache-2.0
// Decoding with a key-value cache: each step adds one row per sequence and reads all of them. A cache grown by concatenation also
// allocates and copies its whole past for every token, three times the traffic. Rows written in place into reserved memory copy
// nothing. Reserved addresses can get their pages as the sequence grows: one page holds 1024 tokens of a sequence, so the first
// step pays, here with all of the time, for what serves 1024. The metrics growth_ms and growth_per_token tell it apart.
#include <aisp/pair.hpp>

#include <array>
#include <chrono>
#include <cmath>
#include <memory>

#include "decode_attention.cuh"
#include "virtual_memory.hpp"

namespace aisp::ch13 {
namespace {

using namespace decode;

// Copies the rows of each sequence (blockIdx.y), `past` pieces of 16 bytes, to where sequences are `pitch` pieces apart.
constexpr unsigned copy_threads = 256, pieces_per_thread = 4, copy_block = copy_threads * pieces_per_thread;
__global__ __launch_bounds__(copy_threads) void copy_rows_kernel(const uint4* from, uint4* to, unsigned past, unsigned pitch) {
  const uint4* const source = from + std::size_t{blockIdx.y} * past;
  uint4* const target = to + std::size_t{blockIdx.y} * pitch;
  const unsigned first = blockIdx.x * copy_block + threadIdx.x;
  uint4 pieces[pieces_per_thread];
#pragma unroll
  for (unsigned k = 0; k < pieces_per_thread; ++k)
    if (first + k * copy_threads < past) pieces[k] = source[first + k * copy_threads];
#pragma unroll
  for (unsigned k = 0; k < pieces_per_thread; ++k)
    if (first + k * copy_threads < past) target[first + k * copy_threads] = pieces[k];
}

class KvCacheNaive final : public Workload {
 public:
  explicit KvCacheNaive(Setup& setup)
      : sequences_{static_cast<int>(setup.scaled(32))},
        prompt_{static_cast<int>(setup.size("context"))},
        gpu_{setup.device_ordinal(0)},
        k_{setup.input<bf16>(cache_elements(prompt_), normal(0, 1), {.name = "k cache", .constant = true})},
        v_{setup.input<bf16>(cache_elements(prompt_), normal(0, 1), {.name = "v cache", .constant = true})},
        q_{setup.input<bf16>(step_elements(q_heads), normal(0, 1), {.name = "q"})},
        k_rows_{setup.input<bf16>(step_elements(kv_heads), normal(0, 1), {.name = "k rows"})},
        v_rows_{setup.input<bf16>(step_elements(kv_heads), normal(0, 1), {.name = "v rows"})},
        out_{setup.output<bf16>(step_elements(q_heads), {.name = "attention"})},
        reserved_k_{setup.scratch<bf16>(cache_elements(prompt_ + steps))},
        reserved_v_{setup.scratch<bf16>(cache_elements(prompt_ + steps))},
        other_{setup.scratch<bf16>(2 * cache_elements(prompt_ + steps))} {
    cudaMemPool_t pool = nullptr;
    check(cudaDeviceGetDefaultMemPool(&pool, gpu_));
    std::uint64_t keep_all = ~std::uint64_t{0};
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_all));
  }

  // Every step reads the whole cache once.
  Cost cost() const override {
    double rows = 0;
    for (int step = 0; step < steps; ++step) rows += prompt_ + step + 1;
    return {.bytes = rows * sequences_ * row_elements * 2 * sizeof(bf16)};
  }

  double expected(std::size_t index) const override {
    const std::size_t head = index / head_dim, step = head / (static_cast<std::size_t>(sequences_) * q_heads);
    const std::size_t sequence = head / q_heads % static_cast<std::size_t>(sequences_), kv_head = head % q_heads / group;
    const std::size_t rows = static_cast<std::size_t>(prompt_) + step + 1;
    const auto element = [&](const Input<bf16>& cache, const Input<bf16>& fresh, std::size_t row, std::size_t d) -> double {
      const std::size_t column = kv_head * head_dim + d, prompt = static_cast<std::size_t>(prompt_);
      if (row < prompt) return cache.host((sequence * prompt + row) * row_elements + column);
      return fresh.host(((row - prompt) * static_cast<std::size_t>(sequences_) + sequence) * row_elements + column);
    };
    std::array<double, head_dim> q;
    for (std::size_t d = 0; d < head_dim; ++d) q[d] = q_.host(head * head_dim + d);
    double sum = 0, weighted = 0;
    for (std::size_t row = 0; row < rows; ++row) {
      double dot = 0;
      for (std::size_t d = 0; d < head_dim; ++d) dot += q[d] * element(k_, k_rows_, row, d);
      const double weight = std::exp(dot / std::sqrt(double{head_dim}));
      sum += weight;
      weighted += weight * element(v_, v_rows_, row, index % head_dim);
    }
    return weighted / sum;
  }

  // Reports the host's cost of growing: in the run, and as the share of one token of all that its pages serve.
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant != "virtual_growth") return;
    metrics.report("growth_ms", growth_ms_, "ms", Metrics::Better::lower);
    metrics.report("growth_per_token", 1e3 * growth_ms_ / static_cast<double>(rows_per_page()), "us", Metrics::Better::lower);
  }

  void concatenate(Launch& launch) { concatenate_by(launch, &KvCacheNaive::copy_rows); }
  void cat_memcpy2d(Launch& launch) { concatenate_by(launch, &KvCacheNaive::copy_pitched); }
  // The copies without the allocations: two caches take turns.
  void cat_two_buffers(Launch& launch) {
    const bf16 *k = k_, *v = v_;
    for (int step = 0; step < steps; ++step) {
      KvCache longer = step % 2 == 0 ? reserved() : KvCache{other_, other_ + cache_elements(prompt_ + steps), 0};
      longer.sequence_elements = sequence_elements(prompt_ + step + 1);
      copy_rows(launch.stream, k, longer.k, prompt_ + step);
      copy_rows(launch.stream, v, longer.v, prompt_ + step);
      attend(launch, longer, step);
      k = longer.k, v = longer.v;
    }
  }
  void preallocated(Launch& launch) {
    for (int step = 0; step < steps; ++step) attend(launch, reserved(), step);
  }
  void virtual_growth(Launch& launch) {
    growth_ms_ = 0;
    for (int step = 0; step < steps; ++step) {
      const auto before = std::chrono::steady_clock::now();
      back_pages(prompt_ + step + 1);
      growth_ms_ += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - before).count();
      attend(launch, grown_, step);
    }
  }

  // One range of addresses per cache, a whole number of pages per sequence; memory behind those of the prompt alone.
  void reserve_addresses(Launch&) {
    if (pages_) return;
    auto pages = std::make_unique<PagedMemory>(gpu_);
    const std::size_t sequence_bytes = pages->pages_for(sequence_elements(prompt_ + steps) * sizeof(bf16)) * pages->page_bytes();
    grown_.sequence_elements = sequence_bytes / sizeof(bf16);
    for (bf16** base : {&grown_.k, &grown_.v})
      *base = reinterpret_cast<bf16*>(pages->reserve(static_cast<std::size_t>(sequences_) * sequence_bytes));
    pages_ = std::move(pages);
    back_pages(prompt_);
    prompt_pages_ = pages_->mapped_pages();
    prompt_rows_backed_ = backed_rows_;
  }

  // Before each execution: the prompt's rows in place, nothing beyond them.
  void restore_reserved(Launch& launch) { copy_prompt(launch, reserved()); }
  void restore_grown(Launch& launch) {
    pages_->release_down_to(prompt_pages_);
    backed_rows_ = prompt_rows_backed_;
    copy_prompt(launch, grown_);
  }

 private:
  static std::size_t sequence_elements(int rows) { return static_cast<std::size_t>(rows) * row_elements; }
  std::size_t cache_elements(int rows) const { return static_cast<std::size_t>(sequences_) * sequence_elements(rows); }
  std::size_t step_elements(int heads) const { return std::size_t{steps} * sequences_ * heads * head_dim; }
  KvCache reserved() const { return {reserved_k_, reserved_v_, sequence_elements(prompt_ + steps)}; }

  // `length` rows of each sequence, from where they lie without gaps to where there is room for one more.
  void copy_rows(cudaStream_t stream, const bf16* from, bf16* to, int length) const {
    constexpr unsigned row_pieces = row_elements * sizeof(bf16) / sizeof(uint4);
    const unsigned past = row_pieces * static_cast<unsigned>(length);
    const dim3 blocks{(past + copy_block - 1) / copy_block, static_cast<unsigned>(sequences_)};
    copy_rows_kernel<<<blocks, copy_threads, 0, stream>>>(reinterpret_cast<const uint4*>(from), reinterpret_cast<uint4*>(to),
                                                          past, past + row_pieces);
    check(cudaGetLastError());
  }
  void copy_pitched(cudaStream_t stream, const bf16* from, bf16* to, int length) const {
    const std::size_t past = sequence_elements(length) * sizeof(bf16), pitch = sequence_elements(length + 1) * sizeof(bf16);
    check(cudaMemcpy2DAsync(to, pitch, from, past, past, static_cast<std::size_t>(sequences_), cudaMemcpyDeviceToDevice, stream));
  }

  // Allocates the longer cache, copies the past into it, frees the old one: torch.cat, once per token.
  using Copy = void (KvCacheNaive::*)(cudaStream_t, const bf16*, bf16*, int) const;
  void concatenate_by(Launch& launch, Copy copy) {
    const bf16 *k = k_, *v = v_;
    for (int step = 0; step < steps; ++step) {
      const int length = prompt_ + step;
      KvCache longer{nullptr, nullptr, sequence_elements(length + 1)};
      for (auto [to, from] : {std::pair{&longer.k, k}, std::pair{&longer.v, v}}) {
        check(cudaMallocAsync(to, cache_elements(length + 1) * sizeof(bf16), launch.stream));
        (this->*copy)(launch.stream, from, *to, length);
      }
      attend(launch, longer, step);
      if (step > 0) free_both(k, v, launch.stream);
      k = longer.k, v = longer.v;
    }
    free_both(k, v, launch.stream);
  }

  void attend(Launch& launch, const KvCache& cache, int step) {
    const std::size_t first = static_cast<std::size_t>(step) * sequences_;
    const StepInput in{q_.get() + first * q_heads * head_dim, k_rows_.get() + first * row_elements,
                       v_rows_.get() + first * row_elements};
    const dim3 blocks{kv_heads, static_cast<unsigned>(sequences_)};
    decode_kernel<<<blocks, threads, 0, launch.stream>>>(in, cache, prompt_ + step, out_.get() + first * q_heads * head_dim);
    check(cudaGetLastError());
    launch.token();
  }
  static void free_both(const bf16* k, const bf16* v, cudaStream_t stream) {
    check(cudaFreeAsync(const_cast<bf16*>(k), stream));
    check(cudaFreeAsync(const_cast<bf16*>(v), stream));
  }
  // One by one: between the rows of two sequences there may be addresses without memory.
  void copy_prompt(Launch& launch, const KvCache& to) {
    const std::size_t past = sequence_elements(prompt_);
    for (std::size_t s = 0; s < static_cast<std::size_t>(sequences_); ++s)
      for (auto [target, source] : {std::pair{to.k, k_.get()}, std::pair{to.v, v_.get()}})
        check(cudaMemcpyAsync(target + s * to.sequence_elements, source + s * past, past * sizeof(bf16), cudaMemcpyDeviceToDevice,
                              launch.stream));
  }

  std::size_t rows_per_page() const { return pages_->page_bytes() / (row_elements * sizeof(bf16)); }
  void back_pages(int rows) {
    while (backed_rows_ < static_cast<std::size_t>(rows)) {
      for (int sequence = 0; sequence < sequences_; ++sequence)
        for (const bf16* base : {grown_.k, grown_.v})
          pages_->map_page(
              reinterpret_cast<CUdeviceptr>(base + sequence * grown_.sequence_elements + backed_rows_ * row_elements));
      backed_rows_ += rows_per_page();
    }
  }

  static constexpr int steps = 32;
  int sequences_, prompt_, gpu_;
  Input<bf16> k_, v_, q_, k_rows_, v_rows_;
  Output<bf16> out_;
  Scratch<bf16> reserved_k_, reserved_v_, other_;
  std::unique_ptr<PagedMemory> pages_;
  KvCache grown_{};
  std::size_t backed_rows_ = 0, prompt_rows_backed_ = 0, prompt_pages_ = 0;
  double growth_ms_ = 0;
};

}  // namespace

extern constinit const Pair kv_cache_naive{
    .teaches = "a cache grown by concatenation copies its whole past for every token; rows written in place copy nothing",
    .lesson = "preallocated",
    .make = make<KvCacheNaive>,
    .baseline = {.name = "concatenate", .run = call<&KvCacheNaive::concatenate>},
    .optimized = variants(
        {{.name = "preallocated", .run = call<&KvCacheNaive::preallocated>, .reset = call<&KvCacheNaive::restore_reserved>},
         {.name = "virtual_growth",
          .run = call<&KvCacheNaive::virtual_growth>,
          .prepare = call<&KvCacheNaive::reserve_addresses>,
          .reset = call<&KvCacheNaive::restore_grown>,
          .gains_over = "concatenate"}}),
    // These separate the cost of the pitched copy from that of the allocator: the copies of the one and of the other alone.
    .controls = variants({{.name = "cat_memcpy2d", .run = call<&KvCacheNaive::cat_memcpy2d>},
                          {.name = "cat_two_buffers", .run = call<&KvCacheNaive::cat_two_buffers>}}),
    .bound = Bound::memory,
    .tolerance = within(4e-3),  // weights and results are rounded to bf16, 1.6e-3 each
    .needs = {.attributes = {cudaDevAttrMemoryPoolsSupported}},
    .start = Start::immediate,  // allocation and mapping are host calls and part of the price
    .sizes = sizes({{.name = "context", .full = 2048, .multiple = 16, .scales = false}}),
    .sweep = cases({{"context_128", "context=128"}, {"context_2048", "context=2048"}, {"context_16384", "context=16384"}}),
    .reference_samples = 512,  // each is an attention over all rows
};

}  // namespace aisp::ch13
