// SPDX-License-Identifier: Apache-2.0
#include "run/child/energy/back_to_back.hpp"

#include <aisp/check.hpp>

namespace aisp::run {

BackToBack::BackToBack(pair::Session& session) : session_{session} {
  check(cudaEventCreate(&start_));
  for (cudaEvent_t& event : ends_) check(cudaEventCreate(&event));
}

BackToBack::~BackToBack() {
  cudaEventDestroy(start_);
  for (const cudaEvent_t event : ends_) cudaEventDestroy(event);
}

measure::EnergyProgress BackToBack::queue(const Variant& variant, int runs, std::size_t ahead) {
  if (batches_ == 0) check(cudaEventRecord(start_, session_.launch().stream));
  for (int i = 0; i < runs; ++i) session_.submit(variant);
  check(cudaEventRecord(ends_[batches_ % ahead], session_.launch().stream));
  ++batches_;
  if (batches_ < ahead) return {};
  const cudaEvent_t oldest = ends_[batches_ % ahead];
  check(cudaEventSynchronize(oldest));
  float elapsed_ms = 0;
  check(cudaEventElapsedTime(&elapsed_ms, start_, oldest));
  return {(batches_ - ahead + 1) * static_cast<std::size_t>(runs), elapsed_ms * 1e-3};
}

void BackToBack::finish() {
  session_.synchronize_all();
  batches_ = 0;
}

}  // namespace aisp::run
