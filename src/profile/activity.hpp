// SPDX-License-Identifier: Apache-2.0
// The GPUs' actual work, from CUPTI's activity records. Needs no root; CUPTI is opened at run time.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace aisp::profile {

struct KernelShape {
  std::array<int, 3> grid{};
  std::array<int, 3> block{};
  std::array<int, 3> cluster{};  // zeros: launched without
  int registers = 0;             // of a thread
  std::uint64_t static_shared_bytes = 0;
  std::uint64_t dynamic_shared_bytes = 0;
  std::uint64_t local_bytes = 0;  // of a thread
  bool operator==(const KernelShape&) const = default;
};

struct Activity {
  // Waits, calls (of CUDA's API) and memory (allocated or freed) are the host's.
  enum class Kind : std::uint8_t { kernel, memcpy, memset, wait, call, memory };
  Kind kind = Kind::kernel;
  std::uint64_t start_ns = 0;  // CUPTI's clock, the same for all GPUs and the host
  std::uint64_t end_ns = 0;
  int device = 0;                 // CUDA ordinal
  std::uint32_t stream = 0;       // CUPTI's number of the stream
  std::string name{};             // of a kernel, mangled; of a call; of a wait's kind; a copy's "pinned host to device"
  std::uint64_t bytes = 0;        // of a copy, memset or memory
  std::uint32_t correlation = 0;  // the same for a call and what it launched
  std::uint32_t thread = 0;       // of a call
  bool freed = false;             // of memory
  bool is_node = false;           // of a kernel: launched by a graph
  bool over_link = false;         // a copy between host and GPU, or between GPUs
  bool own = false;               // a kernel that the harness launched (base::OwnLaunch)
  KernelShape shape{};
};

// Device: kernels, copies and memsets, which costs the host next to nothing. Memory: allocations of device memory too.
// Everything: also the host's calls and waits, which makes each call microseconds longer.
enum class Detail : std::uint8_t { device, memory, everything };

// Records between start() and stop(). One at a time in a process; nothing stays switched on after stop().
class ActivityRecorder {
 public:
  // Why there is nothing to record with (library absent, privileges, another profiler), nothing when there is.
  static const std::optional<std::string>& unavailable();

  ActivityRecorder();  // throws Unsupported when unavailable
  ~ActivityRecorder();
  ActivityRecorder(const ActivityRecorder&) = delete;
  ActivityRecorder& operator=(const ActivityRecorder&) = delete;

  void start(Detail detail = Detail::device);
  // Drops what was recorded so far. The device must be idle.
  void forget();
  // In the order of their start. The device must be idle.
  std::vector<Activity> stop();
  // The same, and goes on.
  std::vector<Activity> take();
  // Host functions queued on streams or put into graphs since start().
  int host_functions() const;
  // Whether CUPTI has told, in this process, which launch a kernel comes from. Until then the harness's own kernels are told by
  // their names.
  static bool tells_own();
  // Now, by the clock of the records.
  static std::uint64_t now_ns();

 private:
  Detail detail_ = Detail::device;
};

// From the first start to the last end, 0 for none; nanoseconds.
std::uint64_t span_ns(const std::vector<Activity>& activities);
// Device memory that was allocated and not yet freed, at its most; what there was before does not count. In order of time.
std::uint64_t most_allocated_bytes(const std::vector<Activity>& activities);

}  // namespace aisp::profile
