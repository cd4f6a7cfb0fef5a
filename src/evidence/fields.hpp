// SPDX-License-Identifier: Apache-2.0
// JSON members that most files of evidence have (base/json_fields.hpp). Not for use beyond evidence's own .cpp files.
#pragma once
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json_fields.hpp"
#include "evidence/profile/counter_table.hpp"
#include "evidence/profile/profile.hpp"
#include "evidence/range.hpp"
#include "evidence/result.hpp"

namespace aisp::evidence {

using nlohmann::json;

using Writer = base::JsonWriter;
using Reader = base::JsonReader;

// For members that most files lack: unreported metrics, unrecorded GPUs, machines of a merged run.
template <class T, class Visitor>
void describe_unless_empty(const std::string& name, T& values, Visitor& visit) {
  std::optional<T> some;
  if (!values.empty()) some = std::move(values);
  visit(name, some);
  if (some) values = std::move(*some);
}

AISP_DESCRIBE(Range, value, low, high)
AISP_DESCRIBE(Lost, kind, text)
AISP_DESCRIBE(StageRecord, started_s, elapsed_s, limit_s, finished)

template <class Visitor>
void describe(ResultCeilings& c, Visitor& visit) {
  AISP_VISIT(visit, c, memory_bytes_s, flops_s, source, memory_from);
  describe_unless_empty("flops_from", c.flops_from, visit);
}

AISP_DESCRIBE(DeclaredCost, flops, bytes, math, bytes_of)

// By stage name, as the watchdog's readers expect it.
inline void write_field(json& to, std::vector<StageRecord>& records) {
  to = json::object();
  for (StageRecord& record : records) {
    Writer writer{to[std::string{to_string(record.stage)}]};
    describe(record, writer);
  }
}

inline void read_field(const json& from, std::vector<StageRecord>& records, const std::string& place) {
  if (!from.is_object()) Reader::wrong(place, "an object", from);
  records.clear();
  for (const auto& [name, entry] : from.items()) {
    StageRecord& record = records.emplace_back();
    Reader::read(json(name), record.stage, place);
    Reader::read(entry, record, place + "." + name);
  }
  std::sort(records.begin(), records.end(), [](const StageRecord& a, const StageRecord& b) { return a.started_s < b.started_s; });
}

// Returns the source of a ceiling in a file that names none for each ceiling: `source` is of all ceilings together, and where
// some were not measured, any of them may be a guess.
inline CeilingFrom ceiling_from_of(const std::string& source, const std::string& limiter) {
  if (limiter == "issue slots" || limiter == "special functions" || limiter == "declared") return CeilingFrom::computed;
  const bool not_all_measured =
      source.starts_with("provisional") || source.find("what it could not measure") != std::string::npos;
  return not_all_measured ? CeilingFrom::guess : CeilingFrom::measured;
}

inline void read_field(const json& from, ResultCeilings& value, const std::string& place) {
  Reader::read_plainly(from, value, place);
  if (from.contains("memory_from")) return;
  value.memory_from = ceiling_from_of(value.source, "memory");
  if (value.memory_from != CeilingFrom::measured)
    for (const auto& [math, flops_s] : value.flops_s) value.flops_from[math] = value.memory_from;
}

// Until November 2026 it was the text alone.
inline void read_field(const json& from, Lost& value, const std::string& place) {
  if (from.is_string()) value = {LostKind::other, from.get<std::string>()};
  else Reader::read_plainly(from, value, place);
}

AISP_DESCRIBE(Stall, reason, percent)

template <class Visitor>
void describe(Counters& c, Visitor& visit) {
  AISP_VISIT(visit, c, source, passes, l2_bytes, drained, flops, flops_counted, uncounted_instructions_percent, stalls, report);
  for (const CounterRow& row : counter_rows) visit(std::string{row.id}, c.*row.value);
}

AISP_DESCRIBE(KernelProfile, name, count, total_ms, mean_ms, share_percent, grid, grids, block, cluster, registers,
              static_shared_bytes, dynamic_shared_bytes, local_bytes, occupancy_percent, occupancy_limit, waves)
AISP_DESCRIBE(CopyProfile, direction, count, bytes, total_ms, bytes_per_second)
AISP_DESCRIBE(MemsetProfile, count, bytes, total_ms)
AISP_DESCRIBE(CallProfile, name, count, total_ms)
AISP_DESCRIBE(HostProfile, wall_ms, user_ms, system_ms, voluntary_switches, involuntary_switches, minor_faults, major_faults)
AISP_DESCRIBE(Profile, span_ms, busy_ms, idle_percent, gaps, longest_gap_ms, launches, kernel_ms, copy_ms, overlap_percent,
              kernels, copies, memsets, host_ms, launch_calls, launch_ms, calls, synchronizations, allocations,
              peak_allocated_bytes, host, trace)

}  // namespace aisp::evidence
