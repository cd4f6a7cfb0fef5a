// SPDX-License-Identifier: Apache-2.0
// Hardware counters read in this process by CUPTI's range profiler, without Nsight. CUPTI is opened at run time.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace aisp::profile {

using MetricValues = std::map<std::string, double>;  // by the metric's name; those that the chip does not have are absent

// Returns those of `wanted` that a chip ("GH100") has, in their order; needs no GPU. `availability`: counters that the driver
// allows this process, all if empty. Throws Unsupported without CUPTI and for a chip that it does not know.
std::vector<std::string> known_metrics(const std::string& chip, const std::vector<std::string>& wanted,
                                       const std::vector<std::uint8_t>& availability = {});

// A part of a pass whose counters are read apart. Its work is done when it returns.
struct CountedRange {
  std::string name;
  std::function<void()> work;
};

// One at a time in a process, on one GPU. A GPU has fewer counters than metrics are wanted, so all ranges are run once a pass.
class RangeProfiler {
 public:
  // Reads those of `wanted` that the chip has. Throws Unsupported with the reason: no CUPTI, an older one, counters refused, none
  // of the metrics known.
  RangeProfiler(int gpu, const std::vector<std::string>& wanted);
  ~RangeProfiler();
  RangeProfiler(const RangeProfiler&) = delete;
  RangeProfiler& operator=(const RangeProfiler&) = delete;

  std::size_t passes() const;
  // `before` runs ahead of the ranges in each pass and is not counted. One set of values a range.
  std::vector<MetricValues> collect(const std::function<void()>& before, const std::vector<CountedRange>& ranges);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace aisp::profile
