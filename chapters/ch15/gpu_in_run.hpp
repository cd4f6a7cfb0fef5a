// SPDX-License-Identifier: Apache-2.0
// The state of one of the GPUs: memory and graphs of its steps, and how far it is in a run.
#pragma once
#include <aisp/graph.hpp>

#include <array>
#include <deque>
#include <utility>

#include "prompt_schedule.hpp"

namespace aisp::ch15 {

constexpr int most_steps = 64;

// The decode rows of a GPU under one policy. Variants run by turns, so each policy has its own.
struct DecodeRows {
  Scratch<int> memory;
  Batch batch;
  Graph step;  // of these rows alone
};

struct GpuInRun {
  GpuInRun(Setup& setup, const PromptSchedule& plan, int gpu)
      : lengths{setup.scratch<int>(size(2 * (plan.requests + plan.prompts)), {.device = gpu})},
        decoding{rows_of(setup, plan, gpu), rows_of(setup, plan, gpu), rows_of(setup, plan, gpu)},
        current{setup.scratch<int>(size(plan.requests), {.device = gpu})},
        pull_pairs{setup.scratch<int>(size(2 * plan.prompts * pages_for(plan.prompt)), {.device = gpu})},
        stream{setup.stream(gpu)} {
    for (cudaEvent_t& event : ended) event = setup.event(gpu);
  }
  DecodeRows& rows(Policy policy) { return decoding[static_cast<std::size_t>(policy)]; }
  void begin() {
    waiting.clear(), computed.clear();
    first = queued = finished = decoded = 0;
  }

  Scratch<int> lengths;                // of each sequence before a run, and then how many rows a run writes after them
  std::array<DecodeRows, 3> decoding;  // by policy
  Scratch<int> current;                // tokens of the decode rows, where steps hold other rows, too
  Scratch<int> pull_pairs;             // of each prompt, its pages on the first GPU and on the second
  cudaStream_t stream;
  std::array<cudaEvent_t, 2 * most_steps> ended;  // of each step
  std::deque<int> waiting;                        // prompts that have come
  std::deque<std::pair<int, Prompts>> computed;   // by the step of that number, and not handed over yet
  int first = 0;                                  // tokens of the first of them that are computed
  int queued = 0, finished = 0, decoded = 0;

 private:
  static DecodeRows rows_of(Setup& setup, const PromptSchedule& plan, int gpu) {
    return {.memory = setup.scratch<int>(BatchMemory::words(plan.requests), {.device = gpu}), .batch = {}, .step = {}};
  }
};

}  // namespace aisp::ch15
