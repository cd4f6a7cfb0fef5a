// SPDX-License-Identifier: Apache-2.0
// Names of the fields of counters. Not for use beyond evidence's own .cpp files.
#pragma once
#include "evidence/counters.hpp"
#include "evidence/fields.hpp"

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
  visit("duration_us", c.duration_us);
  visit("sm_throughput_percent", c.sm_throughput_percent);
  visit("memory_throughput_percent", c.memory_throughput_percent);
  visit("dram_read_bytes", c.dram_read_bytes);
  visit("dram_write_bytes", c.dram_write_bytes);
  visit("l2_hit_percent", c.l2_hit_percent);
  visit("occupancy_percent", c.occupancy_percent);
  visit("tensor_pipe_percent", c.tensor_pipe_percent);
  visit("bank_conflicts", c.bank_conflicts);
  visit("sectors_per_load", c.sectors_per_load);
  visit("sectors_per_store", c.sectors_per_store);
  visit("flops", c.flops);
  visit("flops_counted", c.flops_counted);
  visit("uncounted_instructions_percent", c.uncounted_instructions_percent);
  visit("stalls", c.stalls);
  visit("report", c.report);
}

}  // namespace aisp::evidence
