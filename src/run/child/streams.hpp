// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace aisp::run {

// Independent random numbers from the run's seed: random_bits(seed, stream) is the seed of each.
enum Stream : std::uint64_t {
  stream_of_inputs = 0x1000,  // of the timed rounds
  stream_of_order,            // of the variants in a round
  stream_of_looks,            // which samples are looked at, and how
  stream_of_checks,           // which inputs are compared with the reference
  stream_of_executor,
  stream_of_second_inputs = 0x5EED,
  stream_of_edges = 0xED6E,
  stream_of_audit = 0xA0D17,
};

}  // namespace aisp::run
