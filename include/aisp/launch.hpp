// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace aisp {

// What a variant's method gets. Work must be ordered after what `stream` holds at entry and before what it holds at return: other
// streams fork from it and join it again with events. The harness forks and joins the streams of a pair's further GPUs itself.
class Launch {
 public:
  cudaStream_t stream = nullptr;          // of the first GPU; null for host pairs
  std::span<const cudaStream_t> streams;  // one per GPU; streams[0] == stream

  // The time of something a user waits for, on `stream`. A request's first token gives the time to first token (TTFT), measured
  // from the start of the sample; the distances to its later tokens give the time per output token (TPOT).
  virtual void token(int request = 0) = 0;
  // A named point in time; "us since the start of the sample" is reported as the metric `name`.
  virtual void mark(const char* name) = 0;
  // The same on one of the workload's own streams.
  virtual void mark(const char* name, cudaStream_t on) = 0;
  virtual void push_range(const char* name) = 0;  // NVTX; prefer Range
  virtual void pop_range() = 0;

 protected:
  ~Launch() = default;
};

// An NVTX range in the domain "aisp", for as long as it lives. Costs nothing when no tool listens.
class Range {
 public:
  Range(Launch& launch, const char* name) : launch_{launch} { launch_.push_range(name); }
  ~Range() { launch_.pop_range(); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  Launch& launch_;
};

}  // namespace aisp
