// SPDX-License-Identifier: Apache-2.0
// One execution of a variant under the recorder. Pure: what is read from it needs no CUDA.
#pragma once
#include <cstdint>
#include <vector>

#include "profile/activity.hpp"
#include "profile/ranges.hpp"

namespace aisp::profile {

struct MemoryPoint {
  std::uint64_t at_ns = 0;
  std::uint64_t bytes = 0;
};

struct Recording {
  std::vector<Activity> activities;  // without the markers around the execution
  std::vector<NamedRange> ranges;
  // The time that counts, on the GPU: from the end of the first marker to the start of the last; zeros without markers.
  std::uint64_t frame_begin_ns = 0, frame_end_ns = 0;
  std::uint64_t host_begin_ns = 0, host_end_ns = 0;  // of the variant's function
  std::vector<MemoryPoint> resident;                 // of the host, in order; of host pairs only
};

// Takes the markers of measure/gpu_kernels.hpp out of the records. `from_first_work`: the stream was held back until all was
// queued, so that the time before the first work and behind the last is nobody's.
Recording framed(std::vector<Activity> activities, bool from_first_work);

// Stretches of time, apart from each other and in order.
struct Stretch {
  std::uint64_t start_ns = 0, end_ns = 0;
};
using Stretches = std::vector<Stretch>;
Stretches covered(const std::vector<Activity>& activities, Activity::Kind kind);
Stretches united(Stretches stretches);
std::uint64_t total_ns(const Stretches& stretches);
std::uint64_t common_ns(const Stretches& a, const Stretches& b);

// Calls that no other call of their thread contains, in order: the runtime calls the driver.
std::vector<Activity> outermost_calls(const Recording& recording);

bool is_launch(const Activity& call);

}  // namespace aisp::profile
