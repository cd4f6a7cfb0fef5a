// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/pair.hpp>

#include <cstdint>
#include <memory>

#include "base/one_way.hpp"
#include "base/system/entropy.hpp"
#include "measure/stopwatch.hpp"
#include "pair/session.hpp"
#include "run/child/environment.hpp"
#include "run/wire/request.hpp"

namespace aisp::run {

// The request, the machine it runs on and the pair's other processes: all stages read them, none changes them.
struct Context {
  const Pair& pair;
  const Request& request;
  const Environment& environment;
  pair::RankGroup& ranks;
  // The seed of timed rounds and the audit, the same on all ranks. It is the request's only under --reproducible: results on
  // inputs that come again in the next process could be kept for it.
  std::uint64_t timed_seed =
      request.reproducible ? request.seed : ranks.of_first("the seed of the timed rounds", base::entropy());
};

// Independent random numbers: base::OneWay{seed}(stream) is the seed of each, from that of the request or of the timed rounds.
enum Stream : std::uint64_t {
  stream_of_inputs = 0x1000,  // inputs of the timed rounds
  stream_of_order,            // order of the variants in a round
  stream_of_looks,            // which samples are checked, and how
  stream_of_checks,           // which inputs are compared with the reference
  stream_of_executor,
  stream_of_second_inputs = 0x5EED,
  stream_of_edges = 0xED6E,
  stream_of_audit = 0xA0D17,
  stream_of_timed_inputs,  // timed inputs on which the audit executes again
  stream_of_company,       // inputs on which the baseline is compared with itself alone
};

// A pair's resources from one stage to the next. They outlive the stages: when one throws, only its caller knows whether anything
// can still be freed.
struct Resources {
  std::unique_ptr<pair::Session> session;
  std::unique_ptr<measure::Stopwatch> stopwatch;  // exists from the warm-up on; it uses the session

  void free() {
    stopwatch.reset();
    session.reset();
  }
  // Gives the resources up after a CUDA error: nothing on the GPU can be freed or trusted any more; the process's end frees it.
  void abandon() {
    [[maybe_unused]] const auto* leaked_session = session.release();
    [[maybe_unused]] const auto* leaked_stopwatch = stopwatch.release();
  }
};

}  // namespace aisp::run
