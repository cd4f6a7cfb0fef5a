// SPDX-License-Identifier: Apache-2.0
// Many runs in the order of time, and where something changed for good.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "evidence/manifest.hpp"
#include "evidence/run_record.hpp"

namespace aisp::evidence {

struct SeriesStep {
  std::size_t at = 0;            // index of the first value after it
  double before = 0, after = 0;  // medians of the values between this step and its neighbours
  double p_value = 1;
  // Known to history() alone.
  std::string run_id{};  // the first after it
  bool source_changed = false;
  std::vector<ManifestDifference> causes{};  // of the manifests on both sides
};

// Lasting changes of level. Over all ways to cut the series in two, the largest standardised Mann-Whitney statistic (Pettitt:
// A non-parametric approach to the change-point problem, Applied Statistics 28, 1979; Hawkins and Deng: A nonparametric
// change-point control chart, Journal of Quality Technology 42, 2010), its chance from permutations of the series; then the same
// on both sides. A step has p <= 0.01 and changes the median by evidence::smallest_change at least. Fewer than 10 values have
// none. `days`: of each value, rising; values of a day share what the machine was like that day, so that days are permuted, not
// values. None: every value has a day of its own.
std::vector<SeriesStep> find_steps(std::span<const double> values, std::span<const std::size_t> days = {});

// A change that only the last two, three or four days show, where a cut in two has too little on one side: all of them lie above,
// or all below, all others. The chance of that is 2 over the number of ways to choose them; three such looks share p <= 0.01,
// which takes 36 days to see the last two, 17 for three and 13 for four. `at` is the first value of them.
std::optional<SeriesStep> find_recent(std::span<const double> values, std::span<const std::size_t> days = {});

// The quantity of a series: a variant's median time, or its speedup.
enum class SeriesOf : std::uint8_t { median_ms, speedup };
constexpr base::Words<2> words_of(SeriesOf) { return {{"median_ms", "speedup"}}; }

struct Series {
  std::string target, variant, hardware, machine;  // machine_in_history()
  SeriesOf quantity = SeriesOf::speedup;
  std::vector<std::string> run_ids;
  std::vector<double> values;
  std::size_t days = 0;  // on which they were measured
  std::vector<SeriesStep> steps;
  std::optional<SeriesStep> recent;  // after the last step
};
void to_json(nlohmann::json& json, const Series& series);

// Returns the name that distinguishes machines in a history: the host's name; in a container, whose name is often drawn for each
// run, the GPUs that the pair used, or the fingerprint of the host.
std::string machine_in_history(const PairResult& pair, const Manifest& manifest);

// Returns the series of every optimized variant. `runs` may come in any order.
std::vector<Series> history(const std::vector<RunRecord>& runs);

}  // namespace aisp::evidence
