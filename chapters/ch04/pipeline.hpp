// SPDX-License-Identifier: Apache-2.0
// Schedules of a pipeline, in units of time: a stage's forward pass of a microbatch takes one, and so do the gradients of its
// inputs and those of its weights. In a backward pass both are computed layer by layer, and the stage before gets its gradients
// after two units. Split, it gets them after one, and the gradients of weights wait until the stage has nothing else to do.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

namespace aisp::ch04::pipeline {

enum class Work : unsigned char { forward, backward, input_gradients, weight_gradients };

struct Step {
  int stage = 0, microbatch = 0;
  Work work = Work::forward;
};

enum class Policy : unsigned char {
  all_forward,               // then all backward
  one_forward_one_backward,  // a stage has no more microbatches under way than it needs to keep the last one busy
  split_backward,            // likewise, with room for as many on all stages, and gradients of weights in the gaps
};

struct Schedule {
  std::vector<Step> steps;  // of all stages; each comes after those that it needs
  int units = 0;
  int most_kept = 0;  // tensors that one stage keeps for a later step at once, in those of one layer and microbatch

  double bubble(int microbatches) const { return 1 - 3.0 * microbatches / units; }
};

class Stage {
 public:
  Stage(int number, int stages, int microbatches, Policy policy)
      : number_{number},
        is_last_{number + 1 == stages},
        microbatches_{microbatches},
        policy_{policy},
        room_{policy == Policy::all_forward                ? microbatches
              : policy == Policy::one_forward_one_backward ? stages - number
                                                           : stages} {}

  // Returns whether the stage begins a step in this unit; `arrived` microbatches came from the stage before, and the gradients of
  // `returned` from the one after it.
  bool begins(int arrived, int returned, Step& step) {
    if (in_backward_) {
      in_backward_ = false, ++inputs_, ++weights_;
      return false;
    }
    const bool can_forward = forward_ < arrived && forward_ - weights_ < room_;
    const bool can_return = inputs_ < (is_last_ ? forward_ : returned);
    if (can_forward && (policy_ == Policy::all_forward || !can_return)) step = {number_, forward_++, Work::forward};
    else if (can_return && policy_ == Policy::split_backward) step = {number_, inputs_++, Work::input_gradients};
    else if (can_return && (policy_ != Policy::all_forward || forward_ == microbatches_))
      step = {number_, inputs_, Work::backward}, in_backward_ = true;
    else if (weights_ < inputs_) step = {number_, weights_++, Work::weight_gradients};
    else return false;
    return true;
  }
  int forward() const { return forward_; }
  int inputs() const { return inputs_; }
  // Counts inputs of layers, until the gradients of weights are there, and gradients of their outputs.
  int kept() const { return forward_ - weights_ + (inputs_ - weights_); }
  bool done() const { return weights_ == microbatches_; }

 private:
  int number_;
  bool is_last_;
  int microbatches_;
  Policy policy_;
  int room_;
  bool in_backward_ = false;
  int forward_ = 0, inputs_ = 0, weights_ = 0;  // microbatches that are done
};

inline Schedule schedule(int stages, int microbatches, Policy policy) {
  std::vector<Stage> all;
  for (int stage = 0; stage < stages; ++stage) all.emplace_back(stage, stages, microbatches, policy);
  Schedule result;
  while (!std::ranges::all_of(all, &Stage::done)) {
    const std::vector<Stage> before = all;  // what is done in this unit arrives in the next
    for (std::size_t stage = 0; stage < all.size(); ++stage) {
      const int arrived = stage == 0 ? microbatches : before[stage - 1].forward();
      const int returned = stage + 1 == all.size() ? 0 : before[stage + 1].inputs();
      if (Step step; all[stage].begins(arrived, returned, step)) result.steps.push_back(step);
      result.most_kept = std::max(result.most_kept, all[stage].kept());
    }
    ++result.units;
  }
  return result;
}

}  // namespace aisp::ch04::pipeline
