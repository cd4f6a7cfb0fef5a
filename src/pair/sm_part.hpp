// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <vector>

namespace aisp::pair {

// SMs set apart for a stream: a green context of the driver (CUDA 12.5), and its one stream.
class SmPart {
 public:
  // Takes `sms` or some more from `rest`, by as many as the chip sets apart at a time. Throws Unsupported where the driver cannot
  // do it or fewer are left.
  SmPart(int ordinal, int sms, CUdevResource& rest);
  ~SmPart();
  SmPart(const SmPart&) = delete;
  SmPart& operator=(const SmPart&) = delete;

  cudaStream_t stream() const { return stream_; }
  int sms() const { return sms_; }

  // All SMs of a GPU.
  static CUdevResource all(int ordinal);

 private:
  CUgreenCtx context_ = nullptr;
  cudaStream_t stream_ = nullptr;
  int sms_ = 0;
};

// No SM belongs to two of them.
class SmParts {
 public:
  const SmPart& add(int ordinal, int sms);

 private:
  std::map<int, CUdevResource> rest_;  // by the GPU's ordinal
  std::vector<std::unique_ptr<SmPart>> parts_;
};

}  // namespace aisp::pair
