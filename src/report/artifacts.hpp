// SPDX-License-Identifier: Apache-2.0
// The files of a run, each written atomically below the run's folder; docs/report-formats.md describes them.
#pragma once
#include <filesystem>
#include <string>

#include "evidence/manifest.hpp"
#include "evidence/result.hpp"

namespace aisp::report {

// <chapter>_<pair>/results/benchmark_test_results.{json,md}, and profiles/profile.md where a variant has a profile
void write_pair(const std::filesystem::path& folder, const evidence::PairResult& result);
// benchmark_test_results.{json,md} and results.csv
void write_suite(const std::filesystem::path& folder, const evidence::SuiteResult& suite, const evidence::Manifest& manifest);

// RFC 4180, one row a variant, or one without a variant for a pair that has none; the columns and their order are described in
// docs/report-formats.md and only ever grow at the end.
std::string suite_csv(const evidence::SuiteResult& suite, const evidence::Manifest& manifest);

}  // namespace aisp::report
