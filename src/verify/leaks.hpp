// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

#include "pair/session.hpp"

namespace aisp::verify {

// Memory in use around one execution: device memory by the driver's account and by the pools', host memory by the allocator's.
class LeakWatch {
 public:
  explicit LeakWatch(const pair::Session& session) : session_{session} {}
  void before();
  void after();
  bool grew() const;
  std::string text() const;  // how much, of what, and the buffer that is as large

 private:
  struct Use {
    std::int64_t device_bytes = 0;
    std::int64_t pool_bytes = 0;
    std::int64_t host_bytes = 0;
  };
  Use measure() const;

  const pair::Session& session_;
  Use before_;
  Use growth_;
};

}  // namespace aisp::verify
