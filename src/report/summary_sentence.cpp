// SPDX-License-Identifier: Apache-2.0
#include "report/summary_sentence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "base/math/statistics.hpp"
#include "base/text.hpp"
#include "report/numbers.hpp"

namespace aisp::report {
namespace {

using evidence::PairResult;
using evidence::RunSummary;
using evidence::Status;

std::string machine_of(const evidence::Manifest& manifest) {
  if (!manifest.machines.empty()) return base::plural(manifest.machines.size(), "machine");
  if (manifest.gpus.empty()) return manifest.cpu.empty() ? "this machine" : manifest.cpu;
  std::map<std::string, std::size_t> gpus;
  for (const evidence::ManifestGpu& gpu : manifest.gpus) ++gpus[gpu.name];
  std::vector<std::string> texts;
  for (const auto& [name, number] : gpus) texts.push_back((number == 1 ? "one " : fmt::format("{} x ", number)) + name);
  return base::join(texts, " and ");
}

// The greatest speedup that half of those lessons reach that became faster.
double speedup_of_half(const std::vector<PairResult>& pairs) {
  std::vector<double> speedups;
  for (const PairResult& pair : pairs)
    if (const evidence::VariantResult* lesson = evidence::lesson_variant(pair))
      if (lesson->speedup->verdict == evidence::Verdict::faster) speedups.push_back(lesson->speedup->value);
  std::ranges::sort(speedups);
  return speedups.empty() ? 0 : speedups[speedups.size() / 2];
}

std::string faster_text(const evidence::RunRecord& run, const RunSummary& summary) {
  const std::string machine = machine_of(run.manifest);
  if (summary.speedups.count == 0) return "No pair was measured on " + machine;
  if (summary.speedups.count == 1)
    return fmt::format("{} became {}x as fast on {}", summary.speedups.best_target, base::significant(summary.speedups.best),
                       machine);
  std::string text = fmt::format("{} of {} pairs became faster on {}", summary.faster, summary.speedups.count, machine);
  if (summary.faster > 1) text += fmt::format(", half of them {}x or more", base::significant(speedup_of_half(run.pairs)));
  return text;
}

// "2 skipped (needs 2 GPUs, 1 visible)": the reason where all have the same.
std::string skipped_text(const std::vector<PairResult>& pairs, int skipped) {
  std::set<std::string> reasons;
  for (const PairResult& pair : pairs)
    if (pair.status == Status::skipped && pair.complete) reasons.insert(pair.reason);
  return fmt::format("{} skipped{}", skipped, reasons.size() == 1 ? " (" + *reasons.begin() + ")" : "");
}

std::string missing_text(const evidence::RunRecord& run, const RunSummary& summary) {
  const evidence::Outcomes& o = summary.outcomes;
  std::vector<std::string> texts;
  for (const auto& [number, word] : {std::pair{o.failed, "failed"},
                                     {o.timed_out, "timed out"},
                                     {o.crashed, "crashed"},
                                     {o.interrupted, "interrupted"},
                                     {o.not_started, "not started"}})
    if (number > 0) texts.push_back(fmt::format("{} {}", number, word));
  if (o.skipped > 0) texts.push_back(skipped_text(run.pairs, o.skipped));
  if (texts.empty()) return {};
  const int missing = o.selected - o.passed;
  return fmt::format("; {} {} no result: {}", base::plural(static_cast<std::size_t>(missing), "pair"),
                     missing == 1 ? "has" : "have", base::join(texts, ", "));
}

}  // namespace

std::string summary_sentence(const evidence::RunRecord& run, const RunSummary& summary) {
  std::string text = faster_text(run, summary);
  if (summary.library.of > 0)
    text += fmt::format("; the best variant is level with a vendor's library or ahead in {} of {}", summary.library.level,
                        summary.library.of);
  if (summary.speedups.count > 0) text += "; every result was checked against a float64 reference";
  return text + missing_text(run, summary) + ".";
}

}  // namespace aisp::report
