// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <vector>

namespace aisp::pair {

// A green context of the driver (CUDA 12.5): SMs that kernels of its streams keep to.
class GreenContext {
 public:
  GreenContext(int ordinal, CUdevResource& sms);
  ~GreenContext();
  GreenContext(const GreenContext&) = delete;
  GreenContext& operator=(const GreenContext&) = delete;

  CUdevResource sms() const;
  cudaStream_t make_stream() const;

 private:
  CUgreenCtx context_ = nullptr;
};

// SMs set apart for a stream.
class SmPart {
 public:
  SmPart(int ordinal, CUdevResource& sms);
  ~SmPart();
  SmPart(const SmPart&) = delete;
  SmPart& operator=(const SmPart&) = delete;

  cudaStream_t stream() const { return stream_; }
  int sms() const { return sms_; }

 private:
  GreenContext context_;
  cudaStream_t stream_;
  int sms_;
};

// No SM belongs to two of them.
class SmParts {
 public:
  // `sms` or some more, by as many as the chip sets apart at a time. Throws Unsupported where the driver cannot do it or fewer
  // are left.
  const SmPart& add(int ordinal, int sms);

 private:
  // Returns the rest of a GPU's SMs. It can be split again once it has a green context.
  CUdevResource& rest_of(int ordinal);

  std::map<int, CUdevResource> rest_;  // by the GPU's ordinal
  std::vector<std::unique_ptr<GreenContext>> split_;
  std::vector<std::unique_ptr<SmPart>> parts_;
};

}  // namespace aisp::pair
