// SPDX-License-Identifier: Apache-2.0
#include "profile/timeline.hpp"

#include <algorithm>

namespace aisp::profile {
namespace {

Stretch stretch_of(const Activity& activity) { return {activity.start_ns, activity.end_ns}; }

}  // namespace

Stretches united(Stretches stretches) {
  std::sort(stretches.begin(), stretches.end(), [](const Stretch& a, const Stretch& b) { return a.start_ns < b.start_ns; });
  Stretches result;
  for (const Stretch& stretch : stretches) {
    if (!result.empty() && stretch.start_ns <= result.back().end_ns)
      result.back().end_ns = std::max(result.back().end_ns, stretch.end_ns);
    else result.push_back(stretch);
  }
  return result;
}

Stretches covered(const std::vector<Activity>& activities, Activity::Kind kind) {
  Stretches stretches;
  for (const Activity& activity : activities)
    if (activity.kind == kind) stretches.push_back(stretch_of(activity));
  return united(std::move(stretches));
}

std::uint64_t total_ns(const Stretches& stretches) {
  std::uint64_t sum = 0;
  for (const Stretch& stretch : stretches) sum += stretch.end_ns - stretch.start_ns;
  return sum;
}

std::uint64_t common_ns(const Stretches& a, const Stretches& b) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const std::uint64_t start = std::max(a[i].start_ns, b[j].start_ns), end = std::min(a[i].end_ns, b[j].end_ns);
    if (start < end) sum += end - start;
    if (a[i].end_ns < b[j].end_ns) ++i;
    else ++j;
  }
  return sum;
}

Timeline timeline_of(const std::vector<Activity>& work) {
  Timeline timeline;
  Stretches all, link;
  for (const Activity& activity : work) {
    all.push_back(stretch_of(activity));
    if (activity.over_link) link.push_back(stretch_of(activity));
    timeline.copies += activity.kind == Activity::Kind::memcpy;
    if (activity.kind != Activity::Kind::kernel) continue;
    ++timeline.kernels;
    timeline.nodes += activity.is_node;
    timeline.kernels_ns += activity.end_ns - activity.start_ns;
  }
  all = united(std::move(all));
  link = united(std::move(link));
  const Stretches kernels = covered(work, Activity::Kind::kernel);
  if (!all.empty()) timeline.span_ns = all.back().end_ns - all.front().start_ns;
  timeline.busy_ns = total_ns(all);
  timeline.kernel_ns = total_ns(kernels);
  timeline.link_ns = total_ns(link);
  timeline.hidden_ns = common_ns(link, kernels);
  return timeline;
}

}  // namespace aisp::profile
