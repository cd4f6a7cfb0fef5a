// SPDX-License-Identifier: Apache-2.0
// The files of a run, each written atomically below the run's folder; docs/report-formats.md describes them.
#pragma once
#include <filesystem>

#include "evidence/manifest.hpp"
#include "evidence/result.hpp"

namespace aisp::report {

// <chapter>_<pair>/results/benchmark_test_results.{json,md}, and profiles/profile.md where a variant has a profile
void write_pair(const std::filesystem::path& folder, const evidence::PairResult& result);
// benchmark_test_results.{json,md} and results.csv
void write_suite(const std::filesystem::path& folder, const evidence::SuiteResult& suite, const evidence::Manifest& manifest);

}  // namespace aisp::report
