// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/pair.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "evidence/result.hpp"

namespace aisp::run {

// The machine as one pair's process sees it: its GPUs and what they can do.
class Ground {
 public:
  // `uuids`: the GPUs given to the pair; empty for host pairs, which never touch CUDA.
  explicit Ground(const std::vector<std::string>& uuids);
  ~Ground();

  const std::vector<int>& gpus() const { return ordinals_; }                  // CUDA ordinals
  std::optional<std::string> unmet(const Needs& needs, Device device) const;  // the reason to skip, nothing when all is met
  double memory_scale() const;                     // of the workload's sizes, by the smallest of the GPUs
  evidence::GpuState sample() const;               // of the first GPU, now
  std::optional<std::uint64_t> energy_mj() const;  // of all GPUs since the driver was loaded; nothing without a counter
  // That this process holds on the first GPU; nothing where it is not told.
  std::optional<std::uint64_t> own_device_bytes() const;
  // Those that the variants' costs name; nothing where none of them is known.
  std::optional<evidence::Ceilings> ceilings(const std::vector<evidence::VariantResult>& variants) const;
  // Nothing where no ceiling is known for what the cost names.
  std::optional<evidence::Floor> floor(const Cost& cost, double bytes_written, double median_ms,
                                       const std::vector<evidence::GpuState>& states) const;
  // A time that the chip cannot reach, with the arithmetic.
  std::optional<std::string> impossible(const Cost& cost, double median_ms, Cache cache) const;
  // A time so far below what the cost takes at the ceilings that the cost is too high: "1694 % of host memory (10.6 GB/s,
  // SOURCE)". What caches may hold does not count.
  std::optional<std::string> above_ceiling(const Cost& cost, double bytes_written, double median_ms) const;
  const std::vector<evidence::Lost>& lost() const { return lost_; }  // what this environment does not give

 private:
  struct Machine;
  std::unique_ptr<Machine> machine_;
  std::vector<int> ordinals_;
  std::vector<evidence::Lost> lost_;
};

// Before the first use of a library: those that choose between algorithms keep to the ones that give the same bits every time.
// A deterministic setting that the user has made stays.
void demand_deterministic_libraries();

}  // namespace aisp::run
