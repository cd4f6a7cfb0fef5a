// SPDX-License-Identifier: Apache-2.0
// What the GPUs really did, from CUPTI's activity records. Needs no root; CUPTI is opened at run time.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace aisp::profile {

struct Activity {
  enum class Kind : std::uint8_t { kernel, memcpy, memset };
  Kind kind = Kind::kernel;
  std::uint64_t start_ns = 0;  // CUPTI's clock, the same for all GPUs
  std::uint64_t end_ns = 0;
  int device = 0;            // CUDA ordinal
  std::uint32_t stream = 0;  // CUPTI's number of the stream
  std::string name;          // of a kernel, mangled
  std::uint64_t bytes = 0;   // of a copy or memset
};

// Records between start() and stop(). One at a time in a process; nothing stays switched on after stop().
class ActivityRecorder {
 public:
  // Why there is nothing to record with (library absent, privileges, another profiler), nothing when there is.
  static const std::optional<std::string>& unavailable();

  ActivityRecorder();  // throws Unsupported when unavailable
  ~ActivityRecorder();
  ActivityRecorder(const ActivityRecorder&) = delete;
  ActivityRecorder& operator=(const ActivityRecorder&) = delete;

  void start();
  // In the order of their start. The device must be idle.
  std::vector<Activity> stop();
  // Host functions queued on streams since start().
  int host_functions() const;
};

// From the first start to the last end, 0 for none; nanoseconds.
std::uint64_t span_ns(const std::vector<Activity>& activities);
// Time in which at least one of them ran.
std::uint64_t busy_ns(std::vector<Activity> activities);

}  // namespace aisp::profile
