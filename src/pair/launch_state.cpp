// SPDX-License-Identifier: Apache-2.0
#include "pair/launch_state.hpp"

#include <aisp/check.hpp>

namespace aisp::pair {

LaunchState::~LaunchState() {
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
}

void LaunchState::tokens(std::span<const int> requests) {
  if (on_mark) on_mark("token");
  record({}, requests, stream);
}

void LaunchState::push_range(const char* name) {
  if (on_push_range) on_push_range(name);
}

void LaunchState::pop_range() {
  if (on_pop_range) on_pop_range();
}

void LaunchState::mark(const char* name, cudaStream_t on) {
  if (on_mark) on_mark(name);
  constexpr int no_request = 0;
  record(name, {&no_request, 1}, on);
}

void LaunchState::start_recording() {
  pending_.clear();
  recording_ = true;
  started_ = std::chrono::steady_clock::now();
}

void LaunchState::record(const char* name, std::span<const int> requests, cudaStream_t on) {
  if (!recording_) return;
  pending_.push_back({name != nullptr ? name : "", {requests.begin(), requests.end()}, std::chrono::steady_clock::now()});
  if (!on_gpu_) return;
  if (events_.size() < pending_.size()) {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event));
    events_.push_back(event);
  }
  check(cudaEventRecord(events_[pending_.size() - 1], on));
}

std::vector<Mark> LaunchState::stop_recording(cudaEvent_t start) {
  recording_ = false;
  std::vector<Mark> marks;
  std::size_t count = 0;
  for (const Pending& pending : pending_) count += pending.requests.size();
  marks.reserve(count);  // samples keep them
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    double at_ms = 0;
    if (on_gpu_) {
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, start, events_[i]));
      at_ms = milliseconds;
    } else {
      at_ms = std::chrono::duration<double, std::milli>(pending_[i].when - started_).count();
    }
    for (const int request : pending_[i].requests) marks.push_back({pending_[i].name, request, at_ms});
  }
  return marks;
}

}  // namespace aisp::pair
