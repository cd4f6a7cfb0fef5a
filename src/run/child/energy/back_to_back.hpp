// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include <array>

#include "measure/energy.hpp"
#include "pair/session.hpp"

namespace aisp::run {

// Executes without a gap between runs: nothing is restored, emptied or waited for.
class BackToBack {
 public:
  explicit BackToBack(pair::Session& session);
  ~BackToBack();
  BackToBack(const BackToBack&) = delete;
  BackToBack& operator=(const BackToBack&) = delete;

  // Queues runs and returns when fewer than `ahead` batches are open, so that the GPU has work while the host does something
  // else.
  static constexpr std::size_t most_ahead = 8;
  // All calls until finish() must be alike.
  measure::EnergyProgress queue(const Variant& variant, int runs, std::size_t ahead);
  void finish();

 private:
  pair::Session& session_;
  cudaEvent_t start_ = nullptr;
  std::array<cudaEvent_t, most_ahead> ends_{};
  std::size_t batches_ = 0;
};

}  // namespace aisp::run
