// SPDX-License-Identifier: Apache-2.0
// The points of a sweep of one pair with the curves that they form, and the hardware counters of a pair's variants. Recorded ones
// are expectations/<hardware>/sweeps/<pair>.json and expectations/<hardware>/counters/<pair>.json: pictures and READMEs show
// them, and nothing is held against them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "evidence/expectations/expectations.hpp"
#include "evidence/manifest.hpp"
#include "evidence/result.hpp"

namespace aisp::evidence {

// The version of files of recorded sweeps.
inline constexpr int sweep_version = 1;

struct SweptVariant {
  std::string name;
  VariantRole role = VariantRole::optimized;
  double median_ms = 0;            // 0: not timed
  std::optional<double> speedup;   // over the baseline; absent where none may be claimed
  std::optional<double> floor_ms;  // the least that the machine allows
  std::string limiter;             // of the floor
  DeclaredCost cost;
};

struct SweptPoint {
  std::string name;  // of the case
  std::map<std::string, std::uint64_t> sizes;
  std::vector<SweptVariant> variants;  // in the pair's order, baseline first; none where it did not pass
};

struct Sweep {
  int schema_version = sweep_version;
  std::string target, lesson;
  Bound bound = Bound::memory;
  std::string hardware;  // of a recorded one, as in Expectations
  std::string source_digest;
  Recorded recorded;
  std::vector<SweptPoint> points;
};

// Points that differ in one size only, in its ascending order, or in several that rise or fall together.
struct Curve {
  std::string size;                            // that the axis is of
  std::vector<std::string> along;              // that change with it, step by step
  std::map<std::string, std::uint64_t> fixed;  // values of those that tell this curve from others of its family
  std::vector<std::size_t> points;             // two at least
  bool geometric = false;                      // its values multiply rather than add up
};
// A family has as many curves as its further sizes have combinations. The axis is the size along which most points lie on curves;
// points that lie on none are left out. Without any, sizes that change together make one curve of all points.
std::vector<Curve> curves_of(const std::vector<SweptPoint>& points);

// One for each pair that was swept, in the order of the run.
std::vector<Sweep> sweeps_of(const std::vector<PairResult>& pairs);

// Those sweeps of a run of which every point passed, each in place of an earlier one; the names of their targets.
std::vector<std::string> record_sweeps(const std::filesystem::path& folder, const SuiteResult& suite, const Manifest& manifest);

// The version of files of recorded counters.
inline constexpr int counted_version = 1;

struct CountedVariant {
  std::string name;
  VariantRole role = VariantRole::optimized;
  Counters counters;
};

struct Counted {
  int schema_version = counted_version;
  std::string target, lesson;
  std::string hardware;  // as in Expectations
  std::string source_digest;
  Recorded recorded;
  std::vector<CountedVariant> variants;  // those that were counted, in the pair's order
};

// Those pairs of a run that could be expectations and were counted, each in place of an earlier one; the names of their targets.
std::vector<std::string> record_counters(const std::filesystem::path& folder, const SuiteResult& suite, const Manifest& manifest);

}  // namespace aisp::evidence
