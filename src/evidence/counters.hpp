// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace aisp::evidence {

// What warps did or waited for, in percent of the time that they were resident.
struct Stall {
  std::string reason;  // as NVIDIA's counters name it: long_scoreboard, barrier; "selected" is issuing an instruction
  double percent = 0;
};

// What hardware counters say of one execution of a variant, from a cold L2, on the pair's first GPU. What the chip or the tool
// does not count is absent.
struct Counters {
  std::string source;  // "CUPTI", "ncu"
  int passes = 0;      // executions that it took
  double l2_bytes = 0;
  bool drained = false;  // dram_write_bytes has what L2 still held at the end; otherwise up to l2_bytes may be missing
  std::optional<double> duration_us;
  std::optional<double> sm_throughput_percent;      // of the peak of the SM's busiest unit
  std::optional<double> memory_throughput_percent;  // of the peak of the busiest part between L1 and DRAM
  std::optional<double> dram_read_bytes;
  std::optional<double> dram_write_bytes;
  std::optional<double> l2_hit_percent;
  std::optional<double> occupancy_percent;    // of the warps that an SM can hold, while it held any
  std::optional<double> tensor_pipe_percent;  // of the time that SMs were active
  std::optional<double> bank_conflicts;       // shared-memory cycles lost
  std::optional<double> sectors_per_load;     // of 32 bytes a request to global memory; 4 is coalesced for 4-byte elements
  std::optional<double> sectors_per_store;
  std::map<std::string, double> flops;  // by "fp64", "fp32", "fp16", and "tensor bf16" and the like
  bool flops_counted = false;           // no entry above means none were executed
  // Of the instructions of threads, those in launches of graphs, whose operations are not counted. `flops` then has no scalar
  // types.
  std::optional<double> uncounted_instructions_percent;
  std::vector<Stall> stalls;  // descending, together 100 %; empty where they were not counted
  std::string report;         // of ncu, relative to the run folder
};

// Nothing when not both directions were counted.
std::optional<double> dram_bytes(const Counters& counters);

}  // namespace aisp::evidence
