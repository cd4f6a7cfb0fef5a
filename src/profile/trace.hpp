// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "profile/recording.hpp"

namespace aisp::profile {

struct TraceHeading {
  std::string target;  // ch07:transpose
  std::string variant;
  double allocated_bytes = 0;  // on the GPU before the execution
  double span_ms = 0;          // of the execution without the recorder, which makes the trace's longer; 0: not known
};

// In the Trace Event Format that Perfetto and chrome://tracing open: one track a GPU stream, one a host thread for CUDA calls,
// one for ranges and marks, one for allocated memory (of a host pair: resident memory), and an arrow from each launch to what it
// launched. Times in microseconds since the first event.
std::string chrome_trace(const Recording& recording, const TraceHeading& heading);

}  // namespace aisp::profile
