// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/pair.hpp>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "evidence/result.hpp"

namespace aisp::run {

// The machine as one pair's process sees it: its GPUs and what they can do.
class Environment {
 public:
  // `uuids`: the GPUs given to the pair; empty for host pairs, which never touch CUDA.
  explicit Environment(const std::vector<std::string>& uuids);
  ~Environment();

  const std::vector<int>& gpus() const { return ordinals_; }                  // CUDA ordinals
  std::optional<std::string> unmet(const Needs& needs, Device device) const;  // the reason to skip; nothing if all needs are met
  double memory_scale() const;                     // the scale of the workload's sizes, by the smallest of the GPUs
  evidence::GpuState sample() const;               // the first GPU's present state
  std::optional<std::uint64_t> energy_mj() const;  // sum over all GPUs since the driver was loaded; nothing without a counter
  // Returns the memory that this process holds on the first GPU; nothing if unknown.
  std::optional<std::uint64_t> own_device_bytes() const;
  // Returns the ceilings that the variants' costs name; nothing if none of them is known.
  std::optional<evidence::ResultCeilings> ceilings(const std::vector<evidence::VariantResult>& variants) const;
  // Returns the lower bound; nothing if no ceiling is known for what the cost names.
  std::optional<evidence::Floor> floor(const Cost& cost, double bytes_written, double median_ms,
                                       const std::vector<evidence::GpuState>& states) const;
  // Returns the arithmetic if the chip cannot reach this time.
  std::optional<std::string> impossible(const Cost& cost, double median_ms, Cache cache) const;
  // Describes a time so far below the lower bound that the declared cost must be too high: "1694 % of host memory (10.6 GB/s,
  // SOURCE)". Data that caches may hold does not count.
  std::optional<std::string> above_ceiling(const Cost& cost, double bytes_written, double median_ms) const;
  const std::vector<evidence::Lost>& lost() const { return lost_; }  // measurements that this environment cannot give

 private:
  struct Machine;
  std::unique_ptr<Machine> machine_;
  std::vector<int> ordinals_;
  std::vector<evidence::Lost> lost_;
};

// Moves HOME and TMPDIR into `folder`, so that the pair finds nothing that another process left there. Call it when the harness
// has read what it keeps in the user's home.
void move_home(const std::filesystem::path& folder);

// Makes libraries choose only algorithms that give the same bits every time. Call it before their first use. A deterministic
// setting of the user's stays.
void demand_deterministic_libraries();

}  // namespace aisp::run
