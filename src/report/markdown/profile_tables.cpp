// SPDX-License-Identifier: Apache-2.0

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/text.hpp"
#include "evidence/profile/profile_difference.hpp"
#include "report/markdown/markdown.hpp"
#include "report/quote.hpp"

namespace aisp::report {
namespace {

using evidence::CallProfile;
using evidence::KernelProfile;
using evidence::PairResult;
using evidence::Profile;
using evidence::VariantResult;

constexpr std::size_t most_calls = 8;  // a variant, in a table; the JSON has all

std::string size_text(const std::vector<int>& size) {
  std::vector<int> shown = size;
  while (shown.size() > 1 && shown.back() == 1) shown.pop_back();
  return fmt::format("{}", fmt::join(shown, " x "));
}

std::string profile_percent_text(double percent) {
  return percent > 0 && percent < 1 ? fmt::format("{:.1f} %", percent) : fmt::format("{:.0f} %", percent);
}

std::string time_text(double ms) { return ms > 0 ? base::display_ms(ms) : "0"; }

std::string shared_text(const KernelProfile& kernel) {
  if (kernel.static_shared_bytes + kernel.dynamic_shared_bytes == 0) return "0";
  return fmt::format("{} + {}", base::human_bytes(static_cast<double>(kernel.static_shared_bytes)),
                     base::human_bytes(static_cast<double>(kernel.dynamic_shared_bytes)));
}

std::string occupancy_text(const KernelProfile& kernel) {
  return kernel.occupancy_percent
             ? fmt::format("{} ({})", profile_percent_text(*kernel.occupancy_percent), kernel.occupancy_limit)
             : "";
}

// Rows of the variants that have a profile of a GPU, each beginning with the variant's name.
void for_each_profile(const PairResult& pair, const std::function<void(const VariantResult&, const Profile&)>& visit) {
  for (const VariantResult& variant : pair.variants)
    if (variant.profile && !variant.profile->host) visit(variant, *variant.profile);
}

ProfileTable timeline(const PairResult& pair) {
  ProfileTable table{"Timeline",
                     {{"variant", "span", "GPU at work", "idle", "gaps", "longest gap", "kernels", "kernel time", "copy time",
                       "copies under kernels", "trace"}}};
  for_each_profile(pair, [&](const VariantResult& variant, const Profile& p) {
    table.rows.push_back({variant.name, time_text(p.span_ms), time_text(p.busy_ms), profile_percent_text(p.idle_percent),
                          std::to_string(p.gaps), time_text(p.longest_gap_ms), std::to_string(p.launches), time_text(p.kernel_ms),
                          time_text(p.copy_ms), p.copies.empty() ? "" : profile_percent_text(p.overlap_percent),
                          p.trace.substr(p.trace.rfind('/') + 1)});
  });
  return table;
}

ProfileTable kernels(const PairResult& pair) {
  ProfileTable table{"Kernels",
                     {{"variant", "kernel", "count", "total", "mean", "share", "grid", "block", "cluster", "registers",
                       "shared memory, static + dynamic", "local memory", "theoretical occupancy", "waves"}}};
  for_each_profile(pair, [&](const VariantResult& variant, const Profile& p) {
    for (const KernelProfile& k : p.kernels)
      table.rows.push_back({variant.name, k.name, std::to_string(k.count), time_text(k.total_ms), time_text(k.mean_ms),
                            profile_percent_text(k.share_percent),
                            size_text(k.grid) + (k.grids > 1 ? fmt::format(" and {} more", k.grids - 1) : ""), size_text(k.block),
                            size_text(k.cluster), std::to_string(k.registers), shared_text(k),
                            k.local_bytes > 0 ? base::human_bytes(static_cast<double>(k.local_bytes)) : "0", occupancy_text(k),
                            k.waves ? base::significant(*k.waves) : ""});
  });
  return table;
}

ProfileTable copies(const PairResult& pair) {
  ProfileTable table{"Copies and memsets", {{"variant", "kind", "count", "bytes", "time", "rate"}}};
  const auto add = [&](const VariantResult& variant, const std::string& kind, std::size_t count, double bytes, double ms) {
    table.rows.push_back({variant.name, kind, std::to_string(count), base::human_bytes(bytes), time_text(ms),
                          ms > 0 ? base::human_rate(bytes / (ms / 1e3), "B") : ""});
  };
  for_each_profile(pair, [&](const VariantResult& variant, const Profile& p) {
    for (const evidence::CopyProfile& c : p.copies) add(variant, c.direction, c.count, c.bytes, c.total_ms);
    if (p.memsets.count > 0) add(variant, "memset", p.memsets.count, p.memsets.bytes, p.memsets.total_ms);
  });
  return table;
}

ProfileTable host(const PairResult& pair) {
  ProfileTable table{"Host side",
                     {{"variant", "time on the host", "launch calls", "time in them", "waits", "time in them", "allocations",
                       "most allocated"}}};
  for_each_profile(pair, [&](const VariantResult& variant, const Profile& p) {
    std::size_t waits = 0;
    double waited_ms = 0;
    for (const CallProfile& wait : p.synchronizations) {
      if (wait.name == evidence::stream_wait) continue;
      waits += wait.count;
      waited_ms += wait.total_ms;
    }
    table.rows.push_back({variant.name, time_text(p.host_ms), std::to_string(p.launch_calls), time_text(p.launch_ms),
                          std::to_string(waits), time_text(waited_ms), std::to_string(p.allocations),
                          p.allocations > 0 ? base::human_bytes(p.peak_allocated_bytes) : ""});
  });
  return table;
}

ProfileTable calls(const PairResult& pair) {
  ProfileTable table{"CUDA calls of the host", {{"variant", "call", "count", "total", "mean"}}};
  for_each_profile(pair, [&](const VariantResult& variant, const Profile& p) {
    for (std::size_t i = 0; i < std::min(p.calls.size(), most_calls); ++i) {
      const CallProfile& call = p.calls[i];
      table.rows.push_back({variant.name, call.name, std::to_string(call.count), time_text(call.total_ms),
                            time_text(call.total_ms / static_cast<double>(call.count))});
    }
  });
  return table;
}

ProfileTable host_pair(const PairResult& pair) {
  ProfileTable table{"Host",
                     {{"variant", "wall", "user", "system", "voluntary switches", "involuntary switches", "minor page faults",
                       "major page faults"}}};
  for (const VariantResult& variant : pair.variants) {
    if (!variant.profile || !variant.profile->host) continue;
    const evidence::HostProfile& h = *variant.profile->host;
    table.rows.push_back({variant.name, time_text(h.wall_ms), time_text(h.user_ms), time_text(h.system_ms),
                          std::to_string(h.voluntary_switches), std::to_string(h.involuntary_switches),
                          std::to_string(h.minor_faults), std::to_string(h.major_faults)});
  }
  return table;
}

}  // namespace

std::vector<ProfileTable> profile_tables(const PairResult& pair) {
  std::vector<ProfileTable> tables{timeline(pair), kernels(pair), copies(pair), host(pair), calls(pair), host_pair(pair)};
  std::erase_if(tables, [](const ProfileTable& table) { return table.rows.size() < 2; });
  return tables;
}

std::string profile_markdown(const PairResult& pair) {
  const std::vector<ProfileTable> tables = profile_tables(pair);
  if (tables.empty()) return {};
  std::string text = fmt::format("# Profile of {}\n\n{}.\n", pair.target, markdown_text(evidence::profile_sentence(pair)));
  for (const ProfileTable& table : tables) {
    text += fmt::format("\n## {}\n{}", markdown_text(table.title), markdown_table(table.rows));
  }
  return text + "\nWhat each column means: docs/profiling.md.\n";
}

}  // namespace aisp::report
