// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include <array>

#include "pair/session.hpp"

namespace aisp::run {

// Executions without a gap between them: nothing is restored, emptied or waited for.
class BackToBack {
 public:
  explicit BackToBack(pair::Session& session);
  ~BackToBack();
  BackToBack(const BackToBack&) = delete;
  BackToBack& operator=(const BackToBack&) = delete;

  // Returns when the batch before has ended, so that one is always at work.
  void queue(const Variant& variant, int runs);
  void finish();

 private:
  pair::Session& session_;
  std::array<cudaEvent_t, 2> ends_{};
  std::size_t batches_ = 0;
};

}  // namespace aisp::run
