// SPDX-License-Identifier: Apache-2.0
#include "cli/html_report.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "base/files.hpp"
#include "base/text.hpp"
#include "cli/output.hpp"
#include "evidence/expectations.hpp"
#include "machine/nvml.hpp"
#include "pair/code.hpp"
#include "pair/registry.hpp"
#include "report/html.hpp"
#include "suite/run_folder.hpp"

namespace aisp::cli {
namespace {

using base::Error;
using base::Exit;

// Only code that was measured is shown beside its measurement.
report::PairSource source_of(const evidence::PairResult& pair) {
  for (const pair::Entry& entry : pair::registry()) {
    if (entry.target() != pair.target) continue;
    const pair::Code code = pair::code_of(entry);
    if (!pair::has_digest(code, pair.source_digest))
      return {.missing =
                  "This aisp holds another version of the pair's code than the one that was measured, so none is shown; "
                  "aisp report of the commit in the manifest shows it."};
    report::PairSource source;
    for (const pair::SourceFile& file : code.files) source.files.push_back({std::string{file.path}, std::string{file.text()}});
    return source;
  }
  return {.missing = "This aisp does not have this pair, so its code is not shown."};
}

std::size_t without_source(const report::HtmlReport& report) {
  std::size_t count = 0;
  for (const auto& [target, source] : report.sources) count += source.missing.empty() ? 0 : 1;
  return count;
}

std::vector<report::Roofline> rooflines_by_chapter(const evidence::RunRecord& run) {
  const std::vector<evidence::Expectations> all = evidence::as_expectations(run.pairs, run.manifest);
  std::set<std::string> chapters;
  for (const evidence::PairResult& pair : run.pairs) chapters.insert(pair.chapter);
  std::vector<report::Roofline> rooflines;
  for (const std::string& chapter : chapters)
    for (report::Roofline& roofline : report::rooflines(all, {}, {chapter})) rooflines.push_back(std::move(roofline));
  return rooflines;
}

}  // namespace

Exit write_html_report(const std::string& artifacts, const std::string& run, const std::string& file) {
  if (run.empty()) throw Error{Exit::usage, "name a run, as in aisp report latest --html"};
  const std::filesystem::path folder = suite::find_run(artifacts, run);
  report::HtmlReport report;
  report.run = evidence::read_run(folder);
  for (const std::string& warning : report.run.warnings) note("aisp: " + warning);
  if (report.run.manifest.run_id.empty()) report.run.manifest.run_id = folder.filename().string();
  report.rooflines = rooflines_by_chapter(report.run);
  for (const evidence::PairResult& pair : report.run.pairs) report.sources[pair.target] = source_of(pair);
  report.throttle_text = machine::throttle_text;

  const std::string where = file.empty() ? (folder / "report.html").string() : file;
  if (file.empty()) base::write_atomically(where, report::html_report(report));
  else print_to(where, report::html_report(report));
  if (const std::size_t missing = without_source(report); missing > 0)
    note(fmt::format("aisp: {} measured with other code than this aisp holds; shown without source",
                     missing == 1 ? "1 pair was" : fmt::format("{} pairs were", missing)));
  if (where != "-") note(fmt::format("aisp: {} in {}", base::plural(report.run.pairs.size(), "pair"), where));
  return Exit::good;
}

}  // namespace aisp::cli
