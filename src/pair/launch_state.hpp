// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/launch.hpp>

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace aisp::pair {

// A moment inside a sample, in milliseconds since its start.
struct Mark {
  std::string name;  // empty: a token
  int request = 0;
  double at_ms = 0;
};

// The Launch that variants get: remembers marks as CUDA events (GPU pairs) or host times (host pairs) while a sample is recorded.
class LaunchState final : public Launch {
 public:
  explicit LaunchState(bool on_gpu) : on_gpu_{on_gpu} {}
  ~LaunchState();
  LaunchState(const LaunchState&) = delete;
  LaunchState& operator=(const LaunchState&) = delete;

  void token(int request) override { tokens({&request, 1}); }
  void tokens(std::span<const int> requests) override;
  void mark(const char* name) override { mark(name, stream); }
  void mark(const char* name, cudaStream_t on) override;
  void push_range(const char* name) override;
  void pop_range() override;

  void start_recording();                               // host pairs: the sample starts now
  std::vector<Mark> stop_recording(cudaEvent_t start);  // `start`: the sample's start event, null for host pairs; device idle

  std::function<void(const char*)> on_push_range;  // NVTX, set by the code that runs the pair
  std::function<void()> on_pop_range;
  std::function<void(const char*)> on_mark;

 private:
  struct Pending {
    std::string name;
    std::vector<int> requests;  // one of a named mark
    std::chrono::steady_clock::time_point when;
  };
  void record(const char* name, std::span<const int> requests, cudaStream_t on);

  bool on_gpu_;
  bool recording_ = false;
  std::chrono::steady_clock::time_point started_;
  std::vector<Pending> pending_;
  std::vector<cudaEvent_t> events_;  // the i-th belongs to the i-th pending mark; kept for the next sample
};

// Throw Unsupported with the needed and the available amount; bytes are of one block, static ones included.
void demand_shared_memory(std::size_t needed, std::size_t available);
void demand_clusters(unsigned blocks, bool has_clusters);

}  // namespace aisp::pair
