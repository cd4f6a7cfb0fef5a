// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "profile/activity.hpp"
#include "profile/timeline.hpp"

namespace aisp::profile {

// Names of the harness's kernels that frame the audited execution on the pair's main stream (measure/gpu_kernels.hpp).
inline constexpr const char* begin_marker = "aisp_sample_begin";
inline constexpr const char* end_marker = "aisp_sample_end";

// A kernel's compiled resources, as the driver reports them. Kernels of one name with other figures are others.
struct CompiledKernel {
  std::string name;  // short
  int registers = 0;
  std::uint64_t local_bytes = 0;  // both of a thread
  bool operator==(const CompiledKernel&) const = default;
};

struct Audit {
  std::vector<std::string> findings;     // work that a stopwatch on the main stream would not see, in plain words
  Timeline timeline;                     // of the execution's work
  std::vector<CompiledKernel> compiled;  // each once, in the order of their names
};

// Times in one execution, by CUPTI's clock, before which work does not count.
struct Before {
  std::uint64_t rested_ns = 0;  // all that the pair may do before the run was done: from here on kernels are the harness's alone
  std::uint64_t ready_ns = 0;   // what the harness does before the run was done too: from here on there are no copies either
};

// One execution between its markers. `gpus`: those of the pair.
Audit audit(const std::vector<Activity>& activities, const std::vector<int>& gpus, const Before& before = {});

// Names of a pair's kernels that began from `since_ns` on, or whose beginning CUPTI does not know yet.
std::vector<std::string> kernels_begun(const std::vector<Activity>& activities, std::uint64_t since_ns);

}  // namespace aisp::profile
