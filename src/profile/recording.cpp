// SPDX-License-Identifier: Apache-2.0
#include "profile/recording.hpp"

#include <algorithm>

#include "profile/audit.hpp"

namespace aisp::profile {
namespace {

// CUPTI asks for each kernel's name so.
constexpr const char* cupti_own_call = "cuKernelGetName";

bool on_gpu(const Activity& activity) {
  return activity.kind == Activity::Kind::kernel || activity.kind == Activity::Kind::memcpy ||
         activity.kind == Activity::Kind::memset;
}

bool is(const Activity& activity, const char* marker) { return activity.own && activity.name.find(marker) != std::string::npos; }

}  // namespace

Recording framed(std::vector<Activity> activities, bool from_first_work) {
  Recording recording;
  std::uint64_t first_ns = 0, last_ns = 0;
  for (Activity& activity : activities) {
    if (is(activity, begin_marker)) {
      recording.frame_begin_ns = activity.end_ns;
    } else if (is(activity, end_marker)) {
      recording.frame_end_ns = activity.start_ns;
    } else {
      if (on_gpu(activity)) {
        first_ns = first_ns == 0 ? activity.start_ns : std::min(first_ns, activity.start_ns);
        last_ns = std::max(last_ns, activity.end_ns);
      }
      recording.activities.push_back(std::move(activity));
    }
  }
  const bool has_frame = recording.frame_begin_ns > 0 && recording.frame_end_ns > recording.frame_begin_ns;
  if (from_first_work || !has_frame) {
    recording.frame_begin_ns = first_ns;
    recording.frame_end_ns = last_ns;
  }
  return recording;
}

std::vector<Activity> outermost_calls(const Recording& recording) {
  std::vector<Activity> calls;
  for (const Activity& activity : recording.activities) {
    const bool inside = activity.start_ns >= recording.host_begin_ns && activity.start_ns <= recording.host_end_ns;
    if (activity.kind == Activity::Kind::call && inside && activity.name != cupti_own_call) calls.push_back(activity);
  }
  std::sort(calls.begin(), calls.end(), [](const Activity& a, const Activity& b) {
    if (a.thread != b.thread) return a.thread < b.thread;
    return a.start_ns != b.start_ns ? a.start_ns < b.start_ns : a.end_ns > b.end_ns;
  });
  std::vector<Activity> outer;
  for (Activity& call : calls)
    if (outer.empty() || outer.back().thread != call.thread || call.start_ns >= outer.back().end_ns)
      outer.push_back(std::move(call));
  std::stable_sort(outer.begin(), outer.end(), [](const Activity& a, const Activity& b) { return a.start_ns < b.start_ns; });
  return outer;
}

bool is_launch(const Activity& call) {
  return call.name.find("Launch") != std::string::npos && call.name.find("HostFunc") == std::string::npos;
}

}  // namespace aisp::profile
