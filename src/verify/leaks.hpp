// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

namespace aisp::verify {

// Memory in use around one execution: device memory by the driver's account, host memory by the allocator's.
class LeakWatch {
 public:
  explicit LeakWatch(bool on_gpu) : on_gpu_{on_gpu} {}
  void before();
  void after();
  bool grew() const;
  std::string text() const;

 private:
  struct Use {
    std::int64_t device_bytes = 0;
    std::int64_t host_bytes = 0;
  };
  Use measure() const;

  bool on_gpu_;
  Use before_;
  Use growth_;
};

}  // namespace aisp::verify
