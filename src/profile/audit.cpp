// SPDX-License-Identifier: Apache-2.0
#include "profile/audit.hpp"

#include <algorithm>
#include <optional>
#include <tuple>

#include "profile/kernel_name.hpp"

namespace aisp::profile {
namespace {

// Clocks of different GPUs, and of the copy engines of one, are matched to about this.
constexpr std::uint64_t clock_slack_ns = 2000;

bool is_marker(const Activity& activity, const char* marker) {
  return activity.own && activity.name.find(marker) != std::string::npos;
}

std::string what(const Activity& activity) {
  if (activity.kind == Activity::Kind::kernel) return "kernel " + activity.name;
  const char* kind = activity.kind == Activity::Kind::memcpy ? "a copy of " : "a memset of ";
  return kind + std::to_string(activity.bytes) + " bytes";
}

// The harness copies too, and CUPTI does not say who does.
std::uint64_t begins_with(const Before& before, const Activity& activity) {
  return activity.kind == Activity::Kind::kernel ? before.rested_ns + clock_slack_ns : before.ready_ns;
}

std::string microseconds(std::uint64_t ns) { return std::to_string((ns + 500) / 1000) + " us"; }

std::vector<CompiledKernel> compiled_of(const std::vector<Activity>& work) {
  std::vector<CompiledKernel> kernels;
  for (const Activity& activity : work)
    if (activity.kind == Activity::Kind::kernel)
      kernels.push_back({short_name(demangled(activity.name)), activity.shape.registers, activity.shape.local_bytes});
  std::ranges::sort(kernels, {},
                    [](const CompiledKernel& kernel) { return std::tie(kernel.name, kernel.registers, kernel.local_bytes); });
  kernels.erase(std::unique(kernels.begin(), kernels.end()), kernels.end());
  return kernels;
}

}  // namespace

std::vector<std::string> kernels_begun(const std::vector<Activity>& activities, std::uint64_t since_ns) {
  std::vector<std::string> names;
  for (const Activity& activity : activities)
    if (activity.kind == Activity::Kind::kernel && !activity.own && (activity.start_ns >= since_ns || activity.start_ns == 0))
      names.push_back(short_name(demangled(activity.name)));
  return names;
}

Audit audit(const std::vector<Activity>& activities, const std::vector<int>& gpus, const Before& before) {
  Audit result;
  std::optional<Activity> begin, end;
  std::vector<Activity> work;
  for (const Activity& activity : activities) {
    if (is_marker(activity, begin_marker)) begin = activity;
    else if (is_marker(activity, end_marker)) end = activity;
    else if (!activity.own && activity.end_ns > begins_with(before, activity)) work.push_back(activity);
  }
  if (!begin || !end) {
    result.findings.push_back("the frame of the execution is missing in CUPTI's records");
    return result;
  }
  for (const Activity& activity : work) {
    if (std::find(gpus.begin(), gpus.end(), activity.device) == gpus.end())
      result.findings.push_back(what(activity) + " ran on GPU " + std::to_string(activity.device) + ", which is not the pair's");
    if (activity.end_ns > end->start_ns + clock_slack_ns)
      result.findings.push_back(what(activity) + " on stream " + std::to_string(activity.stream) + " ended " +
                                microseconds(activity.end_ns - end->start_ns) + " after the end of the sample");
    if (activity.start_ns + clock_slack_ns < begin->end_ns)
      result.findings.push_back(what(activity) + " on stream " + std::to_string(activity.stream) + " started " +
                                microseconds(begin->end_ns - activity.start_ns) + " before the sample");
  }
  result.compiled = compiled_of(work);
  result.timeline = timeline_of(work);
  return result;
}

}  // namespace aisp::profile
