// SPDX-License-Identifier: Apache-2.0
#include "report/artifacts.hpp"

#include <nlohmann/json.hpp>

#include "base/system/files.hpp"
#include "evidence/json.hpp"
#include "evidence/run_summary.hpp"
#include "report/csv.hpp"
#include "report/markdown/markdown.hpp"
#include "report/markdown/profile_tables.hpp"

namespace aisp::report {

void write_pair(const std::filesystem::path& folder, const evidence::PairResult& result) {
  const std::filesystem::path own = folder / evidence::folder_of(result), results = own / "results";
  base::write_atomically(results / "benchmark_test_results.json", evidence::json_text(result, 2) + "\n");
  base::write_atomically(results / "benchmark_test_results.md", pair_markdown(result));
  if (const std::string profile = profile_markdown(result); !profile.empty())
    base::write_atomically(own / "profiles" / "profile.md", profile);
}

void write_suite(const std::filesystem::path& folder, const evidence::SuiteResult& suite, const evidence::Manifest& manifest) {
  base::write_atomically(folder / "benchmark_test_results.json",
                         evidence::json_text(evidence::suite_json(suite, manifest), 2) + "\n");
  base::write_atomically(folder / "benchmark_test_results.md", suite_markdown(suite, manifest));
  base::write_atomically(folder / "results.csv", suite_csv(suite, manifest));
}

}  // namespace aisp::report
