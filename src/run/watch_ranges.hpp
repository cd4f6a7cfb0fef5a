// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "pair/session.hpp"
#include "profile/ranges.hpp"

namespace aisp::run {

// What the workload marks becomes NVTX's ranges and marks.
inline void watch_ranges(pair::Session& session) {
  session.launch().on_push_range = profile::push_range;
  session.launch().on_pop_range = profile::pop_range;
  session.launch().on_mark = profile::mark;
}

}  // namespace aisp::run
