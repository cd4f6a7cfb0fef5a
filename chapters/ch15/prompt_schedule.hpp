// SPDX-License-Identifier: Apache-2.0
// Prompts that arrive at two GPUs while requests decode: lengths, arrivals, and which GPU has which rows.
#pragma once
#include <algorithm>
#include <string_view>
#include <vector>

#include "decoder/arrange.hpp"
#include "step_times.cuh"

namespace aisp::ch15 {

constexpr int gpus = 2, chunk = 160, most_prefill_rows = 5120;
constexpr double prompt_limit_ms = 2.5, gap_limit_ms = 0.5;  // what a user waits for gladly

// Whether each GPU has half of both, prompts first or in pieces within decode steps; or the first GPU has the prompts, the second
// one decodes.
enum class Policy { prompts_first, disaggregated, chunked };
inline Policy policy_of(std::string_view variant) {
  return variant == "disaggregated"      ? Policy::disaggregated
         : variant == "chunked_replicas" ? Policy::chunked
                                         : Policy::prompts_first;
}

struct PromptSchedule {
  int requests, context, prompts, prompt;
  bool is_spaced, is_planted;

  int length(int request) const { return std::max(context - request / contexts_in_all, 1); }
  int prompt_length(int p) const { return !is_planted || p > 1 ? prompt : p == 0 ? 1 : std::max(prompt - 1, 1); }
  // All prompts wait when a run begins, or they come as the trace has it, within 14 ms.
  double arrival_ms(int p) const {
    double all = 0, before = 0;
    for (int i = 0; is_spaced && i <= prompts; ++i) {
      all += Trace{}.request(Trace::planted + i).gap;
      if (i == p) before = all;
    }
    return is_spaced ? 14 * before / all : 0;
  }
  // Of each sequence: the rows before a run, and then those that a run writes after them.
  std::vector<int> lengths_and_writes() const {
    std::vector<int> all;
    for (int r = 0; r < requests; ++r) all.push_back(length(r));
    all.resize(size(requests + prompts), 0);
    all.resize(size(2 * requests + prompts), steps);
    all.resize(size(2 * (requests + prompts)), prompt);
    return all;
  }
  static int gpu_of_prompt(Policy policy, int p) { return policy == Policy::disaggregated ? 0 : p % gpus; }
  // Where a prompt's keys and values are in the end.
  static int gpu_that_decodes(Policy policy, int p) { return policy == Policy::disaggregated ? 1 : p % gpus; }
  int decode_rows(Policy policy, int gpu) const {
    if (policy == Policy::disaggregated) return gpu == 1 ? requests : 0;
    return (requests + gpus - 1 - gpu) / gpus;
  }
  std::vector<Span> decode_spans(Policy policy, int gpu, int step) const {
    std::vector<Span> spans;
    for (int i = 0; i < decode_rows(policy, gpu); ++i) {
      const int request = policy == Policy::disaggregated ? i : i * gpus + gpu;
      spans.push_back({request, length(request) + step, 1});
    }
    return spans;
  }
  // Rows of the steps that a GPU will have.
  std::vector<int> numbers_of_rows(Policy policy, int gpu) const {
    std::vector<int> all{context, prompt};
    const int decoding = decode_rows(policy, gpu);
    if (decoding > 0) all.push_back(decoding);
    if (policy == Policy::chunked) all.push_back(decoding + chunk);
    const int most = std::min(most_prefill_rows, (prompts + 1) / gpus * prompt);
    for (int rows = is_spaced ? prompt : most; policy == Policy::prompts_first && rows <= most; rows += prompt)
      all.push_back(rows);
    return all;
  }

  // Returns the cost of the first GPU, whose traffic is counted. A replica computes half of everything and reads all weights in
  // each step. Disaggregated, the first GPU computes all prompts, each in a step of its own.
  Cost cost_of_first(const Shape& s, Policy policy) const {
    Cost all{.math = Math::bf16};
    for (int p = 0; p < prompts; ++p) {
      const Cost of = prefill_cost(s, prompt_length(p));
      all.flops += of.flops, all.bytes += of.bytes;
    }
    if (policy == Policy::disaggregated) return all;
    double keys = 0;
    for (int r = 0; r < requests; ++r) keys += steps * (length(r) + (steps + 1) / 2.0);
    const Cost decoding = decode_cost(s, steps, steps * requests / 2.0, keys / gpus);
    return {.flops = all.flops / gpus + decoding.flops, .math = Math::bf16, .bytes = decoding.bytes};
  }
  // From what the GPUs' clocks say.
  void report(Policy policy, const Times* times, Metrics& metrics) const {
    constexpr double in_ms = 1e-6;
    double sum = 0, longest = 0, late_prompts = 0, late_gaps = 0, gaps = 0;
    for (int p = 0; p < prompts; ++p) {
      const Times& of = times[gpu_of_prompt(policy, p)];
      const double waited = static_cast<double>(of.prompt[p] - of.begin) * in_ms - arrival_ms(p);
      sum += waited;
      late_prompts += waited > prompt_limit_ms;
    }
    for (int gpu = 0; gpu < gpus; ++gpu)
      for (int i = 0; decode_rows(policy, gpu) > 0 && i < steps; ++i) {
        const double gap = static_cast<double>(times[gpu].step[i] - (i == 0 ? times[gpu].begin : times[gpu].step[i - 1])) * in_ms;
        longest = std::max(longest, gap);
        late_gaps += gap > gap_limit_ms;
        ++gaps;
      }
    metrics.report("prompt_ttft", sum / prompts, "ms", Metrics::Better::lower);
    metrics.report("longest_gap", longest, "ms", Metrics::Better::lower);
    metrics.report("prompts_in_time", 100 - 100 * late_prompts / prompts, "%", Metrics::Better::higher);
    metrics.report("steps_in_time", 100 - 100 * late_gaps / gaps, "%", Metrics::Better::higher);
    metrics.report_rate("tokens_per_second", steps * static_cast<double>(requests), "tokens/s");
  }
};

}  // namespace aisp::ch15
