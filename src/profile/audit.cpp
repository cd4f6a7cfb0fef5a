// SPDX-License-Identifier: Apache-2.0
#include "profile/audit.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>

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

constexpr std::string_view anonymous = "(anonymous namespace)::";

std::string without_anonymous(std::string text) {
  for (std::size_t at = text.find(anonymous); at != std::string::npos; at = text.find(anonymous, at))
    text.erase(at, anonymous.size());
  return text;
}

bool opens(char c) { return c == '<' || c == '('; }
bool closes(char c) { return c == '>' || c == ')'; }

Stretch stretch_of(const Activity& activity) { return {activity.start_ns, activity.end_ns}; }

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

std::string demangled(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text{abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status),
                                                         &std::free};
  return status == 0 && text ? std::string{text.get()} : symbol;
}

std::string short_name(const std::string& demangled_name) {
  const std::string text = without_anonymous(demangled_name);
  int depth = 0;
  std::size_t begin = 0, end = text.size();
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (depth == 0 && c == '(' && i > begin) {
      end = i;
      break;
    }
    if (opens(c)) ++depth;
    else if (closes(c)) --depth;
    else if (depth == 0 && (c == ':' || c == ' ')) begin = i + 1;
  }
  return begin < end ? text.substr(begin, end - begin) : demangled_name;
}

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
