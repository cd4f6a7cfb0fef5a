// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <vector>

namespace aisp::pair {

// A green context of the driver (CUDA 12.5): kernels of its streams run on its SMs only.
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

// SMs reserved for a stream.
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

// Parts of GPUs' SMs, none of which overlap.
class SmParts {
 public:
  // Reserves `sms` SMs, rounded up to the chip's groups. Throws Unsupported if the driver cannot do it or fewer are left.
  const SmPart& add(int ordinal, int sms);

 private:
  // Returns the rest of a GPU's SMs. It can be split again once it has a green context.
  CUdevResource& rest_of(int ordinal);

  std::map<int, CUdevResource> rest_;  // by the GPU's ordinal
  std::vector<std::unique_ptr<GreenContext>> split_;
  std::vector<std::unique_ptr<SmPart>> parts_;
};

}  // namespace aisp::pair
