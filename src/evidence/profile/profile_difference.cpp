// SPDX-License-Identifier: Apache-2.0
#include "evidence/profile/profile_difference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/text.hpp"

namespace aisp::evidence {
namespace {

constexpr std::size_t most_changes = 4;

enum class As : std::uint8_t { count, time_ms, bytes, percent };

// A figure of both profiles.
struct ProfileChange {
  std::string_view name;
  As as;
  double before, after;
};

// Counts differ by one, percent by five, and all else by a twentieth.
bool differs(const ProfileChange& figure) {
  const double difference = std::abs(figure.after - figure.before);
  if (figure.as == As::count) return difference > 0;
  return difference >= (figure.as == As::percent ? 5 : 0.05 * std::min(figure.before, figure.after)) && difference > 0;
}

std::string text_of(As as, double value) {
  switch (as) {
    case As::time_ms: return base::display_ms(value);
    case As::bytes: return base::human_bytes(value);
    case As::percent: return fmt::format("{:.0f} %", value);
    case As::count: break;
  }
  return fmt::format("{:.0f}", value);
}

std::size_t host_waits(const Profile& profile) {
  std::size_t count = 0;
  for (const CallProfile& kind : profile.synchronizations)
    if (kind.name != stream_wait) count += kind.count;
  return count;
}

template <class Value>
double sum(const std::vector<CopyProfile>& copies, Value CopyProfile::*member) {
  return std::accumulate(copies.begin(), copies.end(), 0.0,
                         [&](double sum, const CopyProfile& copy) { return sum + static_cast<double>(copy.*member); });
}

// Figures of the GPU, the most telling first.
std::vector<ProfileChange> compared(const Profile& a, const Profile& b, bool with_idle) {
  const auto count = [](std::size_t number) { return static_cast<double>(number); };
  std::vector<ProfileChange> figures{{"launches", As::count, count(a.launches), count(b.launches)},
                                     {"kernel time", As::time_ms, a.kernel_ms, b.kernel_ms}};
  if (with_idle) figures.push_back({"idle", As::percent, a.idle_percent, b.idle_percent});
  if (a.launches == b.launches)
    figures.push_back({"launch calls of the host", As::count, count(a.launch_calls), count(b.launch_calls)});
  figures.insert(figures.end(),
                 {{"bytes copied", As::bytes, sum(a.copies, &CopyProfile::bytes), sum(b.copies, &CopyProfile::bytes)},
                  {"copies", As::count, sum(a.copies, &CopyProfile::count), sum(b.copies, &CopyProfile::count)},
                  {"copy time", As::time_ms, a.copy_ms, b.copy_ms},
                  {"copy time under kernels", As::percent, a.overlap_percent, b.overlap_percent},
                  {"waits of the host", As::count, count(host_waits(a)), count(host_waits(b))},
                  {"allocations", As::count, count(a.allocations), count(b.allocations)}});
  if (!a.kernels.empty() && !b.kernels.empty()) {
    const KernelProfile &first = a.kernels.front(), &second = b.kernels.front();
    if (first.occupancy_percent && second.occupancy_percent)
      figures.push_back({"occupancy", As::percent, *first.occupancy_percent, *second.occupancy_percent});
    figures.push_back({"registers", As::count, double(first.registers), double(second.registers)});
  }
  return figures;
}

std::vector<ProfileChange> compared(const HostProfile& a, const HostProfile& b) {
  const auto count = [](std::uint64_t one, std::uint64_t other) { return static_cast<double>(one + other); };
  return {{"user CPU time", As::time_ms, a.user_ms, b.user_ms},
          {"system CPU time", As::time_ms, a.system_ms, b.system_ms},
          {"context switches", As::count, count(a.voluntary_switches, a.involuntary_switches),
           count(b.voluntary_switches, b.involuntary_switches)},
          {"page faults", As::count, count(a.minor_faults, a.major_faults), count(b.minor_faults, b.major_faults)}};
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
  const bool of_host = before.host && after.host;
  std::vector<std::string> changes;
  for (const ProfileChange& figure : of_host ? compared(*before.host, *after.host) : compared(before, after, with_idle))
    if (differs(figure) && changes.size() < most_changes)
      changes.push_back(
          fmt::format("{} {} -> {}", figure.name, text_of(figure.as, figure.before), text_of(figure.as, figure.after)));
  if (changes.empty())
    return of_host ? "the same CPU time" : "the same launches, copies and idle time, and kernel time within 5 %";
  return base::join(changes, ", ");
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
