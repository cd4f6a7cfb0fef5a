// SPDX-License-Identifier: Apache-2.0
// Hardware counters of one pair's variants. Recorded ones are expectations/<hardware>/counters/<pair>.json: READMEs show them,
// and nothing is held against them.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "evidence/expectations/expectations.hpp"
#include "evidence/manifest.hpp"
#include "evidence/result.hpp"

namespace aisp::evidence {

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
