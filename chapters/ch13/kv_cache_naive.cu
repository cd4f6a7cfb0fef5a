// SPDX-License-Identifier: Apache-2.0
// Decoding with a key-value cache: each step adds one row per sequence and reads all of them. A cache grown by concatenation also
// allocates and copies its whole past for every token, three times the traffic. Rows written in place into reserved memory copy
// nothing. Reserved addresses can get their pages as the sequence grows: mapping them is timed here, all of it in the first step,
// as one page holds 1024 tokens of a sequence; the pages themselves are made in advance.
#include <aisp/pair.hpp>

#include <cmath>
#include <utility>
#include <vector>

#include "decode_attention.cuh"
#include "virtual_memory.hpp"

namespace aisp::ch13 {
namespace {

using namespace decode;

class KvCacheNaive final : public Workload {
 public:
  explicit KvCacheNaive(Setup& setup)
      : sequences_{static_cast<int>(setup.shape(setup.scaled(32), 2))},
        steps_{static_cast<int>(setup.shape(32, 5))},
        prompt_{static_cast<int>(setup.shape(2048, 75))},
        k_{setup.input<bf16>(cache_elements(prompt_), normal(0, 1), {.name = "k cache", .constant = true})},
        v_{setup.input<bf16>(cache_elements(prompt_), normal(0, 1), {.name = "v cache", .constant = true})},
        q_{setup.input<bf16>(step_elements(q_heads), normal(0, 1), {.name = "q"})},
        k_rows_{setup.input<bf16>(step_elements(kv_heads), normal(0, 1), {.name = "k rows"})},
        v_rows_{setup.input<bf16>(step_elements(kv_heads), normal(0, 1), {.name = "v rows"})},
        out_{setup.output<bf16>(step_elements(q_heads), {.name = "attention"})},
        reserved_k_{setup.scratch<bf16>(cache_elements(prompt_ + steps_))},
        reserved_v_{setup.scratch<bf16>(cache_elements(prompt_ + steps_))},
        pages_{setup.device_ordinal(0)} {
    cudaMemPool_t pool = nullptr;
    check(cudaDeviceGetDefaultMemPool(&pool, setup.device_ordinal(0)));
    std::uint64_t keep_all = ~std::uint64_t{0};
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_all));
    reserve_ranges();
  }

  // Every step reads the whole cache once.
  Cost cost() const override {
    double rows = 0;
    for (int step = 0; step < steps_; ++step) rows += prompt_ + step + 1;
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
    double sum = 0, weighted = 0;
    for (std::size_t row = 0; row < rows; ++row) {
      double dot = 0;
      for (std::size_t d = 0; d < head_dim; ++d) dot += q_.host(head * head_dim + d) * element(k_, k_rows_, row, d);
      const double weight = std::exp(dot / std::sqrt(double{head_dim}));
      sum += weight;
      weighted += weight * element(v_, v_rows_, row, index % head_dim);
    }
    return weighted / sum;
  }

  // Allocates the longer cache, copies the past into it, frees the old one: torch.cat, once per token.
  void concatenate(Launch& launch) {
    const bf16 *k = k_, *v = v_;
    for (int step = 0; step < steps_; ++step) {
      const int length = prompt_ + step;
      KvCache longer{nullptr, nullptr, static_cast<std::size_t>(length + 1) * row_elements};
      const std::size_t pitch = longer.sequence_elements * sizeof(bf16), past = pitch - row_elements * sizeof(bf16);
      for (auto [to, from] : {std::pair{&longer.k, k}, std::pair{&longer.v, v}}) {
        check(cudaMallocAsync(to, pitch * static_cast<std::size_t>(sequences_), launch.stream));
        check(cudaMemcpy2DAsync(*to, pitch, from, past, past, static_cast<std::size_t>(sequences_), cudaMemcpyDeviceToDevice,
                                launch.stream));
      }
      attend(launch, longer, step);
      if (step > 0) free_both(k, v, launch.stream);
      k = longer.k, v = longer.v;
    }
    free_both(k, v, launch.stream);
  }
  void preallocated(Launch& launch) {
    for (int step = 0; step < steps_; ++step) attend(launch, reserved(), step);
  }
  void virtual_growth(Launch& launch) {
    for (int step = 0; step < steps_; ++step) {
      back_pages(prompt_ + step + 1);
      attend(launch, grown_, step);
    }
  }

  // Before each execution: the prompt's rows in place, nothing beyond them.
  void restore_reserved(Launch& launch) { copy_prompt(launch, reserved()); }
  void restore_grown(Launch& launch) {
    pages_.unmap_down_to(prompt_pages_);
    backed_rows_ = prompt_rows_backed_;
    copy_prompt(launch, grown_);
  }

 private:
  std::size_t cache_elements(int rows) const { return static_cast<std::size_t>(sequences_) * rows * row_elements; }
  std::size_t step_elements(int heads) const { return static_cast<std::size_t>(steps_) * sequences_ * heads * head_dim; }
  KvCache reserved() const { return {reserved_k_, reserved_v_, static_cast<std::size_t>(prompt_ + steps_) * row_elements}; }

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
  void copy_prompt(Launch& launch, const KvCache& to) {
    const std::size_t past = static_cast<std::size_t>(prompt_) * row_elements * sizeof(bf16);
    const std::size_t past_elements = past / sizeof(bf16);
    for (int sequence = 0; sequence < sequences_; ++sequence) {
      const std::size_t source = sequence * past_elements, target = sequence * to.sequence_elements;
      check(cudaMemcpyAsync(to.k + target, k_.get() + source, past, cudaMemcpyDeviceToDevice, launch.stream));
      check(cudaMemcpyAsync(to.v + target, v_.get() + source, past, cudaMemcpyDeviceToDevice, launch.stream));
    }
  }

  // One range of addresses per cache, a whole number of pages per sequence.
  void reserve_ranges() {
    const std::size_t row_bytes = row_elements * sizeof(bf16), longest = static_cast<std::size_t>(prompt_ + steps_) * row_bytes;
    const std::size_t sequence_pages = pages_.pages_for(longest);
    grown_.sequence_elements = sequence_pages * pages_.page_bytes() / sizeof(bf16);
    for (bf16** base : {&grown_.k, &grown_.v})
      *base =
          reinterpret_cast<bf16*>(pages_.reserve(static_cast<std::size_t>(sequences_) * sequence_pages * pages_.page_bytes()));
    for (std::size_t page = 0; page < 2 * static_cast<std::size_t>(sequences_) * sequence_pages; ++page) pages_.add_page();
    back_pages(prompt_);
    prompt_pages_ = pages_.mapped_pages();
    prompt_rows_backed_ = backed_rows_;
  }
  void back_pages(int rows) {
    while (backed_rows_ < static_cast<std::size_t>(rows)) {
      for (int sequence = 0; sequence < sequences_; ++sequence)
        for (const bf16* base : {grown_.k, grown_.v})
          pages_.map_page(
              reinterpret_cast<CUdeviceptr>(base + sequence * grown_.sequence_elements + backed_rows_ * row_elements));
      backed_rows_ += pages_.page_bytes() / (row_elements * sizeof(bf16));
    }
  }

  int sequences_, steps_, prompt_;
  Input<bf16> k_, v_, q_, k_rows_, v_rows_;
  Output<bf16> out_;
  Scratch<bf16> reserved_k_, reserved_v_;
  PagedMemory pages_;
  KvCache grown_{};
  std::size_t backed_rows_ = 0, prompt_rows_backed_ = 0, prompt_pages_ = 0;
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
          .reset = call<&KvCacheNaive::restore_grown>,
          .needs = {.attributes = {cudaDevAttrMemoryPoolsSupported}},
          .gains_over = "concatenate"}}),
    .bound = Bound::memory,
    .tolerance = reduction_of(2080),
    .needs = {.attributes = {cudaDevAttrMemoryPoolsSupported}},
    .start = Start::immediate,  // allocation and mapping are host calls and part of the price
    .verification = Verification::small_shape,
};

}  // namespace aisp::ch13
