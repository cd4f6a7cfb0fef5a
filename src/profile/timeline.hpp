// SPDX-License-Identifier: Apache-2.0
// How the work of one execution lies in time. Pure: needs no CUDA.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "profile/activity.hpp"

namespace aisp::profile {

// Stretches of time, apart from each other and in order.
struct Stretch {
  std::uint64_t start_ns = 0, end_ns = 0;
};
using Stretches = std::vector<Stretch>;
Stretches united(Stretches stretches);
Stretches covered(const std::vector<Activity>& activities, Activity::Kind kind);
std::uint64_t total_ns(const Stretches& stretches);
std::uint64_t common_ns(const Stretches& a, const Stretches& b);

// Several GPUs share one timeline: work on any of them is work.
struct Timeline {
  std::uint64_t span_ns = 0;     // from the first start to the last end
  std::uint64_t busy_ns = 0;     // in which a kernel, copy or memset ran
  std::uint64_t kernel_ns = 0;   // in which at least one kernel ran
  std::uint64_t kernels_ns = 0;  // durations of all kernels, added up
  std::uint64_t link_ns = 0;     // in which at least one copy between host and GPU, or between GPUs, ran
  std::uint64_t hidden_ns = 0;   // of link_ns: while a kernel ran
  std::size_t kernels = 0, copies = 0;
  std::size_t nodes = 0;  // of the kernels: launched by graphs
};

// Computes the timeline of kernels, copies and memsets, in any order.
Timeline timeline_of(const std::vector<Activity>& work);

}  // namespace aisp::profile
