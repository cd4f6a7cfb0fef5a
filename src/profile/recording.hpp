// SPDX-License-Identifier: Apache-2.0
// One execution of a variant under the recorder, and what is made of it. Pure: what is read from it needs no CUDA.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "evidence/profile/profile.hpp"
#include "profile/activity.hpp"
#include "profile/ranges.hpp"

namespace aisp::profile {

// How many blocks of a kernel an SM holds at a time, from what a launch takes and what the SM has.

struct SmLimits {  // of one GPU
  int sm_count = 0;
  int warps = 0;  // at a time, as all of these
  int blocks = 0;
  int registers = 0;
  std::uint64_t shared_bytes = 0;  // the reserved part of each block included
  std::uint64_t reserved_bytes_per_block = 0;
};

SmLimits sm_limits(int cuda_ordinal);

struct LaunchResources {
  int threads_per_block = 0;
  int registers_per_thread = 0;
  std::uint64_t static_shared_bytes = 0;
  std::uint64_t dynamic_shared_bytes = 0;
};

struct Occupancy {
  int blocks = 0;      // an SM holds; 0: the kernel cannot run
  double percent = 0;  // warps of these blocks, of those that the SM can hold
  std::string limit;   // what runs out first: "warps", "blocks", "registers" or "shared memory"
};

// Theoretical: as if there were blocks enough to fill every SM, and without what clusters ask for.
Occupancy occupancy(const LaunchResources& launch, const SmLimits& sm);

struct MemoryPoint {
  std::uint64_t at_ns = 0;
  std::uint64_t bytes = 0;
};

struct Recording {
  std::vector<Activity> activities;  // without the markers around the execution
  std::vector<NamedRange> ranges;
  // The time that counts, on the GPU: from the end of the first marker to the start of the last; zeros without markers.
  std::uint64_t frame_begin_ns = 0, frame_end_ns = 0;
  std::uint64_t host_begin_ns = 0, host_end_ns = 0;  // of the variant's function
  std::vector<MemoryPoint> resident;                 // of the host, in order; of host pairs only
};

// Takes the markers of measure/gpu_kernels.hpp out of the records. `from_first_work`: the stream was held back until all was
// queued, so that the time before the first work and behind the last is nobody's.
Recording framed(std::vector<Activity> activities, bool from_first_work);

// Calls that no other call of their thread contains, in order: the runtime calls the driver.
std::vector<Activity> outermost_calls(const Recording& recording);

bool is_launch(const Activity& call);

// `device`: an execution in which only the GPU was recorded, `everything`: one with the host's calls, which slow it down.
// `limits`: of each GPU by its CUDA ordinal.
evidence::Profile summarize(const Recording& device, const Recording& everything, const std::map<int, SmLimits>& limits);

// Recording makes an execution longer: the host's calls and the nodes of graphs take more time. Where it took longer than the
// median of the timed samples, that is the span, and what is idle in it is the rest beside the recorded work.
void shorten_to_timed(evidence::Profile& profile, double timed_ms);

struct TraceHeading {
  std::string target;  // ch07:transpose
  std::string variant;
  double allocated_bytes = 0;  // on the GPU before the execution
  double span_ms = 0;          // of the execution without the recorder, which makes the trace's longer; 0: not known
};

// In the Trace Event Format that Perfetto and chrome://tracing open: one track a GPU stream, one a host thread for CUDA calls,
// one for ranges and marks, one for allocated memory (of a host pair: resident memory), and an arrow from each launch to what it
// launched. Times in microseconds since the first event.
std::string chrome_trace(const Recording& recording, const TraceHeading& heading);

}  // namespace aisp::profile
