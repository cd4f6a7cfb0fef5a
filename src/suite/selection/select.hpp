// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>
#include <vector>

#include "evidence/result.hpp"
#include "pair/not_built.hpp"
#include "pair/registry.hpp"

namespace aisp::suite {

struct Selection {
  std::vector<const pair::Entry*> built;
  std::vector<const pair::NotBuilt*> not_built;
};

// Returns the pairs that `targets` name, each once, in the registry's order. A target is `all`, a chapter (`ch07`, also `7` and
// `ch7`), `chapter:name`, `name`, or either with globs (`ch1?:*gemm*`). No target means all. Throws base::Error: usage for a name
// that does not exist, with the nearest ones; nothing for a glob without a match and for a build without pairs.
Selection select(std::span<const pair::Entry> registry, std::span<const pair::NotBuilt> not_built,
                 const std::vector<std::string>& targets);
std::vector<const pair::Entry*> select(std::span<const pair::Entry> registry, const std::vector<std::string>& targets);
// Selects from this executable.
Selection select_here(const std::vector<std::string>& targets);

// Returns "./setup.sh --chapters ch01,ch05:mmap", which builds this executable's pairs and the targets; no target means all.
std::string build_command(const std::vector<std::string>& targets);
// Returns "not built; ./setup.sh --chapters ch01,ch05:mmap builds it": why the pair that the targets name does not run.
std::string not_built_reason(const std::vector<std::string>& targets);
// Returns "21 of 163, chosen with --chapters ch01"; empty if all are built.
std::string built_part();

// Throws base::Error (nothing), with the command that builds them, if the targets selected nothing that is built.
void demand_built(const Selection& selection, const std::vector<std::string>& targets);
// Returns skipped results of these pairs, for a run's reports.
std::vector<evidence::PairResult> results_of_not_built(const Selection& selection, const std::vector<std::string>& targets);

}  // namespace aisp::suite
