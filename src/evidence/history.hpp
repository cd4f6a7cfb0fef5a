// SPDX-License-Identifier: Apache-2.0
// Many runs in the order of time, and where something changed for good.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "evidence/manifest.hpp"
#include "evidence/run_record.hpp"

namespace aisp::evidence {

struct Step {
  std::size_t at = 0;            // index of the first value after it
  double before = 0, after = 0;  // medians of what lies between this step and its neighbours
  double p_value = 1;
};

// Lasting changes of level. Over all ways to cut the series in two, the largest standardised Mann-Whitney statistic (Pettitt:
// A non-parametric approach to the change-point problem, Applied Statistics 28, 1979; Hawkins and Deng: A nonparametric
// change-point control chart, Journal of Quality Technology 42, 2010), its chance from permutations of the series; then the same
// on both sides. A step has p <= 0.01 and changes the median by evidence::smallest_change at least. Fewer than 10 values have
// none.
std::vector<Step> find_steps(std::span<const double> values);

struct SeriesStep : Step {
  std::string run_id;  // the first after it
  bool source_changed = false;
  std::vector<Difference> causes;  // of the manifests on both sides
};

struct Series {
  std::string target, variant, hardware, machine;  // machine: host name
  std::string quantity;                            // "speedup" or "median_ms"
  std::vector<std::string> run_ids;
  std::vector<double> values;
  std::vector<SeriesStep> steps;
};

// Of every optimized variant. `runs` may come in any order.
std::vector<Series> history(const std::vector<RunRecord>& runs);

}  // namespace aisp::evidence
