// SPDX-License-Identifier: Apache-2.0
// The fields of evidence/profile/profile.hpp as files name them. Not for use beyond evidence's own .cpp files.
#pragma once
#include "evidence/fields.hpp"
#include "evidence/profile/counter_table.hpp"
#include "evidence/profile/profile.hpp"

namespace aisp::evidence {

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
