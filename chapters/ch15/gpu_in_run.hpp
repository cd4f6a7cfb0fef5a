// SPDX-License-Identifier: Apache-2.0
// What one of the GPUs has for its steps, and where it stands in a run.
#pragma once
#include <aisp/graph.hpp>

#include <array>
#include <deque>

#include "prompt_schedule.hpp"

namespace aisp::ch15 {

constexpr int most_steps = 64;

struct GpuInRun {
  GpuInRun(Setup& setup, const PromptSchedule& plan, int gpu)
      : lengths{setup.scratch<int>(size(2 * (plan.requests + plan.prompts)), {.device = gpu})},
        decode_memory{setup.scratch<int>(BatchMemory::words(plan.requests), {.device = gpu})},
        current{setup.scratch<int>(size(plan.requests), {.device = gpu})},
        pull_pairs{setup.scratch<int>(size(2 * plan.prompts * pages_for(plan.prompt)), {.device = gpu})},
        stream{setup.stream(gpu)},
        handed_over{setup.event(gpu)} {
    for (cudaEvent_t& event : ended) event = setup.event(gpu);
  }
  void begin() {
    waiting.clear();
    first = queued = finished = decoded = 0;
  }

  Scratch<int> lengths;  // of each sequence before a run, and then how many rows a run writes after them
  Scratch<int> decode_memory;
  Scratch<int> current;     // tokens of the decode rows, where steps hold other rows, too
  Scratch<int> pull_pairs;  // of each prompt, its pages on the first GPU and on the second
  cudaStream_t stream;
  cudaEvent_t handed_over;
  std::array<cudaEvent_t, 2 * most_steps> ended;  // of each step
  Batch decoding;
  Graph step;               // of decode rows alone
  std::deque<int> waiting;  // prompts that have come
  int first = 0;            // tokens of the first of them that are computed
  int queued = 0, finished = 0, decoded = 0;
};

}  // namespace aisp::ch15
