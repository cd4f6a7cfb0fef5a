// SPDX-License-Identifier: Apache-2.0
// The fields of evidence/profile/profile.hpp as files name them. Not for use beyond evidence's own .cpp files.
#pragma once
#include "evidence/fields.hpp"
#include "evidence/profile/counter_table.hpp"
#include "evidence/profile/profile.hpp"

namespace aisp::evidence {

template <class Visitor>
void describe(Stall& s, Visitor& visit) {
  visit("reason", s.reason);
  visit("percent", s.percent);
}

template <class Visitor>
void describe(Counters& c, Visitor& visit) {
  visit("source", c.source);
  visit("passes", c.passes);
  visit("l2_bytes", c.l2_bytes);
  visit("drained", c.drained);
  for (const CounterRow& row : counter_rows) visit(std::string{row.id}, c.*row.value);
  visit("flops", c.flops);
  visit("flops_counted", c.flops_counted);
  visit("uncounted_instructions_percent", c.uncounted_instructions_percent);
  visit("stalls", c.stalls);
  visit("report", c.report);
}

template <class Visitor>
void describe(KernelProfile& k, Visitor& visit) {
  visit("name", k.name);
  visit("count", k.count);
  visit("total_ms", k.total_ms);
  visit("mean_ms", k.mean_ms);
  visit("share_percent", k.share_percent);
  visit("grid", k.grid);
  visit("grids", k.grids);
  visit("block", k.block);
  visit("cluster", k.cluster);
  visit("registers", k.registers);
  visit("static_shared_bytes", k.static_shared_bytes);
  visit("dynamic_shared_bytes", k.dynamic_shared_bytes);
  visit("local_bytes", k.local_bytes);
  visit("occupancy_percent", k.occupancy_percent);
  visit("occupancy_limit", k.occupancy_limit);
  visit("waves", k.waves);
}

template <class Visitor>
void describe(CopyProfile& c, Visitor& visit) {
  visit("direction", c.direction);
  visit("count", c.count);
  visit("bytes", c.bytes);
  visit("total_ms", c.total_ms);
  visit("bytes_per_second", c.bytes_per_second);
}

template <class Visitor>
void describe(MemsetProfile& m, Visitor& visit) {
  visit("count", m.count);
  visit("bytes", m.bytes);
  visit("total_ms", m.total_ms);
}

template <class Visitor>
void describe(CallProfile& c, Visitor& visit) {
  visit("name", c.name);
  visit("count", c.count);
  visit("total_ms", c.total_ms);
}

template <class Visitor>
void describe(HostProfile& h, Visitor& visit) {
  visit("wall_ms", h.wall_ms);
  visit("user_ms", h.user_ms);
  visit("system_ms", h.system_ms);
  visit("voluntary_switches", h.voluntary_switches);
  visit("involuntary_switches", h.involuntary_switches);
  visit("minor_faults", h.minor_faults);
  visit("major_faults", h.major_faults);
}

template <class Visitor>
void describe(Profile& p, Visitor& visit) {
  visit("span_ms", p.span_ms);
  visit("busy_ms", p.busy_ms);
  visit("idle_percent", p.idle_percent);
  visit("gaps", p.gaps);
  visit("longest_gap_ms", p.longest_gap_ms);
  visit("launches", p.launches);
  visit("kernel_ms", p.kernel_ms);
  visit("copy_ms", p.copy_ms);
  visit("overlap_percent", p.overlap_percent);
  visit("kernels", p.kernels);
  visit("copies", p.copies);
  visit("memsets", p.memsets);
  visit("host_ms", p.host_ms);
  visit("launch_calls", p.launch_calls);
  visit("launch_ms", p.launch_ms);
  visit("calls", p.calls);
  visit("synchronizations", p.synchronizations);
  visit("allocations", p.allocations);
  visit("peak_allocated_bytes", p.peak_allocated_bytes);
  visit("host", p.host);
  visit("trace", p.trace);
}

}  // namespace aisp::evidence
