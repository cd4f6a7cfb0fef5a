// SPDX-License-Identifier: Apache-2.0
#include "evidence/profile/profile_difference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/text.hpp"

namespace aisp::evidence {
namespace {

constexpr double smallest_part = 0.02;    // of the baseline's span: what explains less is left out
constexpr double noticeable_percent = 5;  // of the whole
constexpr double noticeable_ratio = 1.05;
constexpr double noticeable_rate = 1.1;
// Beside what they explain: causes before, details behind.
constexpr double just_before = 1.001;
constexpr double just_behind = 0.999;
constexpr std::size_t most_clauses = 3;

struct Clause {
  double weight_ms;  // the time that it may explain
  std::string text;
};
using Clauses = std::vector<Clause>;

std::string_view fell_or_rose(double before, double after) { return after < before ? "fell" : "rose"; }

bool differ_noticeably(double before, double after, double ratio = noticeable_ratio) {
  const double low = std::min(before, after), high = std::max(before, after);
  return high > 0 && high > low * ratio;
}

// base::plural for nouns that do not take a bare s.
std::string plural(std::size_t count, std::string_view noun) {
  if (count == 1) return fmt::format("1 {}", noun);
  if (noun.ends_with("ch")) return fmt::format("{} {}es", count, noun);
  if (noun.ends_with('y')) return fmt::format("{} {}ies", count, noun.substr(0, noun.size() - 1));
  return fmt::format("{} {}s", count, noun);
}

std::string count_or_none(std::size_t count) { return count == 0 ? "none" : std::to_string(count); }

std::string became(std::size_t before, std::size_t after, std::string_view noun) {
  return fmt::format("{} became {}", plural(before, noun), count_or_none(after));
}

std::string percent(double value) { return value > 0 && value < 0.5 ? std::string{"under 1 %"} : fmt::format("{:.0f} %", value); }

double idle_ms(const Profile& profile) { return profile.span_ms * profile.idle_percent / 100; }

std::size_t host_waits(const Profile& profile) {
  std::size_t count = 0;
  for (const CallProfile& kind : profile.synchronizations)
    if (kind.name != stream_wait) count += kind.count;
  return count;
}

struct Copied {
  std::size_t count = 0;
  double bytes = 0;
};
Copied copied(const Profile& profile) {
  Copied sum;
  for (const CopyProfile& copy : profile.copies) {
    sum.count += copy.count;
    sum.bytes += copy.bytes;
  }
  return sum;
}

double copy_rate(const Profile& profile) { return profile.copy_ms > 0 ? copied(profile).bytes / (profile.copy_ms / 1e3) : 0; }

void compare_launches(const Profile& before, const Profile& after, Clauses& clauses) {
  const double idle = std::abs(idle_ms(before) - idle_ms(after));
  if (before.launches != after.launches && before.launches > 0) {
    // Fewer launches explain idle time, and what fusing them did to the kernels; more are a price.
    const double weight = std::max(idle, std::abs(before.kernel_ms - after.kernel_ms));
    const bool by_graph = after.launch_calls > 0 && after.launch_calls < after.launches;
    clauses.push_back({weight * (after.launches < before.launches ? just_before : just_behind),
                       became(before.launches, after.launches, "launch") +
                           (by_graph ? fmt::format(" in {} of the host", plural(after.launch_calls, "call")) : "")});
  } else if (before.launch_calls > after.launch_calls && after.launch_calls > 0) {
    clauses.push_back(
        {idle * just_before, fmt::format("{} of the host became {} for the same {}", plural(before.launch_calls, "launch call"),
                                         after.launch_calls, plural(after.launches, "kernel"))});
  }
}

void compare_idle(const Profile& before, const Profile& after, Clauses& clauses) {
  if (std::abs(before.idle_percent - after.idle_percent) < noticeable_percent) return;
  clauses.push_back({std::abs(idle_ms(before) - idle_ms(after)),
                     fmt::format("idle {} from {} to {}", fell_or_rose(before.idle_percent, after.idle_percent),
                                 percent(before.idle_percent), percent(after.idle_percent))});
}

void compare_kernel_time(const Profile& before, const Profile& after, Clauses& clauses) {
  if (before.kernel_ms <= 0 || after.kernel_ms <= 0 || !differ_noticeably(before.kernel_ms, after.kernel_ms)) return;
  std::string text = fmt::format("kernel time {} from {} to {}", fell_or_rose(before.kernel_ms, after.kernel_ms),
                                 base::display_ms(before.kernel_ms), base::display_ms(after.kernel_ms));
  if (before.launches == after.launches) text += fmt::format(" in as many launches ({})", after.launches);
  clauses.push_back({std::abs(before.kernel_ms - after.kernel_ms), std::move(text)});
}

void compare_copies(const Profile& before, const Profile& after, Clauses& clauses) {
  const Copied old_copies = copied(before), new_copies = copied(after);
  if (old_copies.count == 0 && new_copies.count == 0) return;
  const double weight = std::abs(before.copy_ms - after.copy_ms);
  const double idle = std::abs(idle_ms(before) - idle_ms(after));
  if (differ_noticeably(old_copies.bytes, new_copies.bytes))
    clauses.push_back(
        {weight * just_before, fmt::format("bytes copied {} from {} to {}", fell_or_rose(old_copies.bytes, new_copies.bytes),
                                           base::human_bytes(old_copies.bytes), base::human_bytes(new_copies.bytes))});
  if (old_copies.count > new_copies.count)
    clauses.push_back({std::max(weight, idle) * just_before, became(old_copies.count, new_copies.count, "copy")});
  const double old_rate = copy_rate(before), new_rate = copy_rate(after);
  if (old_rate > 0 && new_rate > 0 && differ_noticeably(old_rate, new_rate, noticeable_rate))
    clauses.push_back({weight, fmt::format("copies ran at {} instead of {}", base::human_rate(new_rate, "B"),
                                           base::human_rate(old_rate, "B"))});
}

void compare_overlap(const Profile& before, const Profile& after, Clauses& clauses) {
  if (before.copy_ms <= 0 || after.copy_ms <= 0) return;
  if (std::abs(before.overlap_percent - after.overlap_percent) < 2 * noticeable_percent) return;
  const double hidden_before = before.copy_ms * before.overlap_percent, hidden_after = after.copy_ms * after.overlap_percent;
  clauses.push_back(
      {std::abs(hidden_after - hidden_before) / 100,
       fmt::format("copy time under kernels {} from {} to {}", fell_or_rose(before.overlap_percent, after.overlap_percent),
                   percent(before.overlap_percent), percent(after.overlap_percent))});
}

void compare_host(const Profile& before, const Profile& after, Clauses& clauses) {
  const double idle = std::abs(idle_ms(before) - idle_ms(after));
  if (const std::size_t old_waits = host_waits(before), new_waits = host_waits(after); old_waits > 0 && old_waits != new_waits)
    clauses.push_back(
        {idle * just_behind, fmt::format("{} of the host became {}", plural(old_waits, "wait"), count_or_none(new_waits))});
  if (before.allocations > 0 && before.allocations != after.allocations)
    clauses.push_back({std::max(idle, std::abs(before.host_ms - after.host_ms)) * just_behind,
                       became(before.allocations, after.allocations, "allocation")});
}

// Compares the kernels that take most time: why they could be faster or slower.
void compare_main_kernel(const Profile& before, const Profile& after, Clauses& clauses) {
  if (before.kernels.empty() || after.kernels.empty()) return;
  const KernelProfile &old_kernel = before.kernels.front(), &new_kernel = after.kernels.front();
  const double weight = std::abs(before.kernel_ms - after.kernel_ms) * just_behind;
  const double old_occupancy = old_kernel.occupancy_percent.value_or(0), new_occupancy = new_kernel.occupancy_percent.value_or(0);
  if (old_occupancy > 0 && new_occupancy > 0 && std::abs(old_occupancy - new_occupancy) >= noticeable_percent) {
    std::string text = fmt::format("occupancy {} from {} to {}", fell_or_rose(old_occupancy, new_occupancy),
                                   percent(old_occupancy), percent(new_occupancy));
    if (old_kernel.registers != new_kernel.registers)
      text += fmt::format(" (registers {} to {})", old_kernel.registers, new_kernel.registers);
    clauses.push_back({weight, std::move(text)});
  } else if (differ_noticeably(old_kernel.registers, new_kernel.registers, noticeable_rate)) {
    clauses.push_back({weight, fmt::format("registers {} from {} to {}", fell_or_rose(old_kernel.registers, new_kernel.registers),
                                           old_kernel.registers, new_kernel.registers)});
  }
}

std::string host_difference(const HostProfile& before, const HostProfile& after) {
  const auto cpu_ms = [](const HostProfile& host) { return host.user_ms + host.system_ms; };
  const auto switches = [](const HostProfile& host) { return host.voluntary_switches + host.involuntary_switches; };
  const auto faults = [](const HostProfile& host) { return host.minor_faults + host.major_faults; };
  return fmt::format(
      "host pair, no GPU activity: CPU time {} (user {}, system {}) became {} ({}, {}), context switches {} became {}, page "
      "faults "
      "{} became {}",
      base::display_ms(cpu_ms(before)), base::display_ms(before.user_ms), base::display_ms(before.system_ms),
      base::display_ms(cpu_ms(after)), base::display_ms(after.user_ms), base::display_ms(after.system_ms), switches(before),
      switches(after), faults(before), faults(after));
}

const VariantResult* compared_with_baseline(const PairResult& pair) {
  const auto has_profile = [](const VariantResult& variant) {
    return variant.role == VariantRole::optimized && variant.profile.has_value();
  };
  for (const VariantResult* variant : {lesson_variant(pair), best_variant(pair)})
    if (variant != nullptr && has_profile(*variant)) return variant;
  const auto found = std::find_if(pair.variants.begin(), pair.variants.end(), has_profile);
  return found == pair.variants.end() ? nullptr : &*found;
}

// Recording takes time itself, most of all in graphs and where the host waits between kernels. Idle time is believed only where
// the recorded execution took about as long as the timed ones.
bool as_timed(const VariantResult& variant) {
  constexpr double believed = 1.2;
  return !variant.timing || variant.profile->span_ms <= variant.timing->summary.median * believed;
}

}  // namespace

std::string profile_difference(const Profile& before, const Profile& after, bool with_idle) {
  if (before.host && after.host) return host_difference(*before.host, *after.host);
  Clauses clauses;
  compare_launches(before, after, clauses);
  compare_copies(before, after, clauses);
  compare_kernel_time(before, after, clauses);
  compare_overlap(before, after, clauses);
  if (with_idle) compare_idle(before, after, clauses);
  compare_host(before, after, clauses);
  compare_main_kernel(before, after, clauses);
  const double least_ms = std::max(before.span_ms, after.span_ms) * smallest_part;
  std::erase_if(clauses, [&](const Clause& clause) { return clause.weight_ms < least_ms; });
  std::stable_sort(clauses.begin(), clauses.end(), [](const Clause& a, const Clause& b) { return a.weight_ms > b.weight_ms; });
  if (clauses.empty()) return "the same launches, copies and idle time, and kernel time within 5 %";
  if (clauses.size() > most_clauses) clauses.resize(most_clauses);
  std::vector<std::string> texts;
  for (Clause& clause : clauses) texts.push_back(std::move(clause.text));
  return base::join(texts, "; ");
}

std::string profile_sentence(const PairResult& pair) {
  for (const Lost& lost : pair.lost)
    if (lost.kind == LostKind::profile) return lost.text;
  if (pair.variants.empty() || !pair.variants.front().profile) return {};
  const VariantResult* after = compared_with_baseline(pair);
  if (after == nullptr) return {};
  const VariantResult& before = pair.variants.front();
  return profile_difference(*before.profile, *after->profile, as_timed(before) && as_timed(*after));
}

}  // namespace aisp::evidence
