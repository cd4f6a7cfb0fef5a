// SPDX-License-Identifier: Apache-2.0
// The profile of one execution of a variant by --profile. Pure data; docs/profiling.md says what each figure means.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace aisp::evidence {

// An activity or a reason for waiting, in percent of the time that warps were resident.
struct Stall {
  std::string reason;  // as NVIDIA's counters name it: long_scoreboard, barrier; "selected" is issuing an instruction
  double percent = 0;
};

// Hardware counters of one execution of a variant, from a cold L2, on the pair's first GPU. Figures that the chip or the tool
// does not count are absent.
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

// Launches of one kernel with equal block and resources.
struct KernelProfile {
  std::string name;  // demangled, without namespaces, return type and parameters
  std::size_t count = 0;
  double total_ms = 0;
  double mean_ms = 0;
  double share_percent = 0;  // of the time of all kernels
  std::vector<int> grid;     // x, y, z of the longest launch
  std::size_t grids = 1;     // different ones
  std::vector<int> block;
  std::vector<int> cluster;  // empty: launched without
  int registers = 0;         // of a thread
  std::uint64_t static_shared_bytes = 0;
  std::uint64_t dynamic_shared_bytes = 0;
  std::uint64_t local_bytes = 0;            // of a thread: spilled registers and arrays
  std::optional<double> occupancy_percent;  // theoretical; absent where the GPU is not known
  std::string occupancy_limit;              // "registers", "shared memory", "warps", "blocks"
  std::optional<double> waves;              // blocks of the longest launch by what all SMs hold at a time
};

struct CopyProfile {
  std::string direction;  // "pinned host to device"
  std::size_t count = 0;
  double bytes = 0;
  double total_ms = 0;
  double bytes_per_second = 0;  // while a copy of this kind ran
};

struct MemsetProfile {
  std::size_t count = 0;
  double bytes = 0;
  double total_ms = 0;
};

// Calls of the host: of CUDA's API by name, or waits by kind.
struct CallProfile {
  std::string name;
  std::size_t count = 0;
  double total_ms = 0;
};

// Among synchronizations: no wait of the host.
inline constexpr const char* stream_wait = "stream wait event";

// The host's part, of a host pair.
struct HostProfile {
  double wall_ms = 0;
  double user_ms = 0;
  double system_ms = 0;
  std::uint64_t voluntary_switches = 0;
  std::uint64_t involuntary_switches = 0;
  std::uint64_t minor_faults = 0;
  std::uint64_t major_faults = 0;
};

struct Profile {
  // The GPU's part, of an execution in which nothing but the GPU was recorded.
  double span_ms = 0;  // of the execution, as the stopwatch sees it
  double busy_ms = 0;  // in which a kernel, copy or memset ran
  double idle_percent = 0;
  std::size_t gaps = 0;  // stretches in which nothing ran
  double longest_gap_ms = 0;
  std::size_t launches = 0;            // kernels
  double kernel_ms = 0;                // in which at least one kernel ran
  double copy_ms = 0;                  // in which at least one copy ran
  double overlap_percent = 0;          // of copy_ms: with a kernel beside it; 0 without copies
  std::vector<KernelProfile> kernels;  // by total time, longest first
  std::vector<CopyProfile> copies;
  MemsetProfile memsets;
  // The host's part, of a second execution in which its calls were recorded too.
  double host_ms = 0;  // the variant's own time on the host
  std::size_t launch_calls = 0;
  double launch_ms = 0;                       // of the host, in calls that launch kernels and graphs
  std::vector<CallProfile> calls;             // by total time, longest first
  std::vector<CallProfile> synchronizations;  // the host's waits, and streams' waits for events
  std::size_t allocations = 0;
  double peak_allocated_bytes = 0;  // beyond what there was before
  std::optional<HostProfile> host;  // of host pairs, which have nothing of the above
  std::string trace;                // relative to the run folder; empty: none was written
};

}  // namespace aisp::evidence
