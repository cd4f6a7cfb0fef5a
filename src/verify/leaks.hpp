// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "pair/session.hpp"

namespace aisp::verify {

// Memory in use around one execution: device memory by the driver's account and by the pools', host memory by the allocator's.
class LeakWatch {
 public:
  // Returns this process's device memory, as Options of the verifier do.
  using OwnBytes = std::function<std::optional<std::uint64_t>()>;
  LeakWatch(pair::Session& session, const OwnBytes& own_device_bytes) : session_{session}, own_device_bytes_{own_device_bytes} {}
  void before();
  void round_ended();  // called between before() and after() if they are rounds apart
  // Excludes host memory that the harness itself keeps for the runs, such as token times, from leaks.
  void harness_keeps(std::size_t bytes) { kept_bytes_ += static_cast<std::int64_t>(bytes); }
  void after();
  bool grew() const;
  // Whether threads of the C library may have kept the growth: freed blocks in their caches count as in use. The caches fill up
  // within many runs, a leak goes on.
  bool threads_may_keep_it() const;
  std::string text() const;  // how much, of what, and the buffer of equal size
  // The same for `runs` executions between before() and after(), with the harness's own work; empty unless each left something:
  // for host memory, in most rounds, since harness and drivers allocate for many rounds at once.
  std::string text_of_each(std::size_t runs);

 private:
  struct Use {
    std::int64_t device_bytes = 0;
    std::optional<std::int64_t> own_device_bytes{};
    std::int64_t pool_bytes = 0;
    std::int64_t host_bytes = 0;
  };
  Use measure() const;
  bool launches_leave_memory() const;

  pair::Session& session_;
  const OwnBytes& own_device_bytes_;
  std::int64_t kept_bytes_ = 0;  // kept by the harness for all runs
  Use before_;
  Use growth_;
  std::vector<std::int64_t> heap_of_rounds_;  // before the first round, and after each
};

}  // namespace aisp::verify
