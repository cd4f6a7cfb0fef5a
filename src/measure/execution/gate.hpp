// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace aisp::measure {

// Holds a stream back until the host has queued a whole sample, so that launch cost stays out of it. Uses a stream memory
// operation if the driver has one, otherwise a spinning kernel. A variant that waits for the GPU while the gate is closed would
// hang, so the gate opens by itself after a while and reports it.
class Gate {
 public:
  // `longest`: the time after which it opens by itself.
  explicit Gate(std::chrono::milliseconds longest = std::chrono::milliseconds{1000});
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void close(cudaStream_t stream);
  void open();
  bool forced_open() const { return forced_; }

 private:
  void watch(const std::stop_token& stop);

  std::uint32_t* flag_ = nullptr;  // mapped host memory
  std::uint32_t* device_flag_ = nullptr;
  std::uint32_t epoch_ = 0;
  void* wait_value_ = nullptr;  // cuStreamWaitValue32
  std::chrono::milliseconds longest_;
  std::atomic<std::int64_t> closed_at_ms_{0};
  std::atomic<bool> forced_{false};
  std::jthread watcher_;
};

}  // namespace aisp::measure
