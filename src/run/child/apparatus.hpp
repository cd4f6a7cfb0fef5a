// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>

#include "measure/stopwatch.hpp"
#include "pair/session.hpp"

namespace aisp::run {

// What a pair holds of the machine from one stage to the next. It outlives the stages: when one of them throws, only who catches
// that knows whether anything can still be freed.
struct Apparatus {
  std::unique_ptr<pair::Session> session;
  std::unique_ptr<measure::Stopwatch> stopwatch;  // from the warm-up on; it uses the session

  void free() {
    stopwatch.reset();
    session.reset();
  }
  // The context may be poisoned: nothing on the GPU can be freed or trusted any more. It goes with the process.
  void abandon() {
    [[maybe_unused]] const auto* leaked_session = session.release();
    [[maybe_unused]] const auto* leaked_stopwatch = stopwatch.release();
  }
};

}  // namespace aisp::run
