// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "profile/activity.hpp"

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

// As written in C++, with namespaces and parameters; what is not mangled stays as it is.
std::string demangled(const std::string& symbol);

// Returns the part of a name that readers look for: "tiled<float, 64>" of "void aisp::ch07::(anonymous namespace)::tiled<float,
// 64>(float const*, float*)".
std::string short_name(const std::string& demangled_name);

// Stretches of time, apart from each other and in order.
struct Stretch {
  std::uint64_t start_ns = 0, end_ns = 0;
};
using Stretches = std::vector<Stretch>;
Stretches united(Stretches stretches);
Stretches covered(const std::vector<Activity>& activities, Activity::Kind kind);
std::uint64_t total_ns(const Stretches& stretches);
std::uint64_t common_ns(const Stretches& a, const Stretches& b);

// Several GPUs share one timeline: work on any of them is work.
struct Timeline {
  std::uint64_t span_ns = 0;     // from the first start to the last end
  std::uint64_t busy_ns = 0;     // in which a kernel, copy or memset ran
  std::uint64_t kernel_ns = 0;   // in which at least one kernel ran
  std::uint64_t kernels_ns = 0;  // durations of all kernels, added up
  std::uint64_t link_ns = 0;     // in which at least one copy between host and GPU, or between GPUs, ran
  std::uint64_t hidden_ns = 0;   // of link_ns: while a kernel ran
  std::size_t kernels = 0, copies = 0;
  std::size_t nodes = 0;  // of the kernels: launched by graphs
};

// Computes the timeline of kernels, copies and memsets, in any order.
Timeline timeline_of(const std::vector<Activity>& work);

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
