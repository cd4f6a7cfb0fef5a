// SPDX-License-Identifier: Apache-2.0
#include "run/child/record.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <aisp/check.hpp>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "evidence/json.hpp"
#include "evidence/limits.hpp"
#include "pair/all_variants.hpp"
#include "run/results/speedups.hpp"
#include "run/wire/blank.hpp"

namespace aisp::run {

Record::Record(const pair::Entry& entry, const Request& request, const Stages& stages, const Reporter& reporter)
    : pair_{*entry.pair}, stages_{stages}, reporter_{reporter}, result_{blank_result(entry, request)} {
  const auto add = [&](const Variant& variant, evidence::VariantRole role) {
    evidence::VariantResult& added = result_.variants.emplace_back();
    added.name = variant.name;
    added.role = role;
    added.changes_precision = variant.changes_precision;
    added.computes_output = variant.outputs != no_outputs;
    added.not_run = variant.not_run;
  };
  add(pair_.baseline, evidence::VariantRole::baseline);
  for (const Variant& variant : pair_.optimized) add(variant, evidence::VariantRole::optimized);
  for (const Variant& variant : pair_.controls) add(variant, evidence::VariantRole::control);
  for (const Variant& variant : pair_.libraries) add(variant, evidence::VariantRole::library);
}

evidence::VariantResult& Record::of(std::string_view variant) {
  return *std::ranges::find(result_.variants, variant, &evidence::VariantResult::name);
}

std::vector<const Variant*> Record::active() const {
  std::vector<const Variant*> variants = pair::all_variants(pair_);
  std::erase_if(variants, [&](const Variant* variant) {
    return std::ranges::find(result_.variants, variant->name, &evidence::VariantResult::name)->status != evidence::Status::passed;
  });
  return variants;
}

void Record::skip(std::string reason) {
  result_.status = evidence::Status::skipped;
  result_.reason = std::move(reason);
}

void Record::skip_variant(std::string_view variant, std::string reason) {
  evidence::VariantResult& skipped = of(variant);
  skipped.status = evidence::Status::skipped;
  skipped.reason = std::move(reason);
}

void Record::problem(std::string variant, std::string check, std::string message, std::string advice) {
  result_.status = evidence::Status::failed;
  message = located(message);
  if (result_.reason.empty()) result_.reason = variant.empty() ? message : variant + ": " + message;
  complain(std::move(variant), std::move(check), std::move(message), std::move(advice));
}

void Record::complain(std::string variant, std::string check, std::string message, std::string advice) {
  const bool in_none = stages_.current() == evidence::Stage::none;
  const evidence::Stage stage = in_none ? evidence::Stage::teardown : stages_.current();
  result_.problems.push_back({stage, std::move(variant), std::move(check), std::move(message), std::move(advice)});
}

void Record::fail_variant(evidence::VariantResult& variant, const std::string& check, std::string message, std::string advice) {
  variant.status = evidence::Status::failed;
  variant.reason = message;
  if (variant.role == evidence::VariantRole::library) return leave_out(variant, message);
  problem(variant.name, check, std::move(message), std::move(advice));
}

void Record::absorb_failures(const verify::Outcome& outcome) {
  evidence::VariantResult& variant = of(outcome.variant);
  if (!outcome.unsupported.empty()) {
    skip_variant(outcome.variant, outcome.unsupported);
    if (variant.role == evidence::VariantRole::baseline) throw Unsupported{outcome.unsupported};
  }
  for (const evidence::Problem& found : outcome.problems) {
    variant.status = evidence::Status::failed;
    variant.reason = found.message;
    if (variant.role == evidence::VariantRole::library) {
      leave_out(variant, found.message);
      continue;
    }
    result_.problems.push_back(found);
    result_.status = evidence::Status::failed;
    if (result_.reason.empty()) result_.reason = fmt::format("{}: {}", variant.name, found.message);
  }
}

// Leaves the library's variant out without failing the pair.
void Record::leave_out(evidence::VariantResult& library, const std::string& why) {
  clear_claims(library);
  for (evidence::VariantResult& variant : result_.variants)
    if (variant.library_share && variant.library_share->library == library.name) variant.library_share.reset();
  warn("library " + library.name + " was left out: " + why);
}

void Record::agree(pair::RankGroup& ranks) {
  if (!ranks.several()) return;
  evidence::PairResult found;
  found.status = result_.status;
  found.variants = {};
  for (const evidence::VariantResult& variant : result_.variants) {
    evidence::VariantResult& told = found.variants.emplace_back();
    told.name = variant.name, told.role = variant.role, told.status = variant.status, told.reason = variant.reason;
  }
  found.problems.assign(result_.problems.begin() + static_cast<std::ptrdiff_t>(problems_told_), result_.problems.end());
  found.warnings.assign(result_.warnings.begin() + static_cast<std::ptrdiff_t>(warnings_told_), result_.warnings.end());
  const std::string where = fmt::format("the end of {}", to_string(stage()));
  const std::vector<std::string> all = ranks.gather(where, evidence::json_text(nlohmann::json(found)));
  for (int rank = 0; rank < ranks.ranks(); ++rank)
    if (rank != ranks.rank()) adopt(fmt::format("rank {}: ", rank), all[static_cast<std::size_t>(rank)]);
  problems_told_ = result_.problems.size();
  warnings_told_ = result_.warnings.size();
}

void Record::adopt(const std::string& rank, const std::string& findings) {
  const auto found = evidence::parse_json(findings, "another rank").get<evidence::PairResult>();
  for (const evidence::VariantResult& theirs : found.variants) {
    evidence::VariantResult& ours = of(theirs.name);
    if (theirs.status == evidence::Status::passed || ours.status != evidence::Status::passed) continue;
    ours.status = theirs.status;
    ours.reason = rank + theirs.reason;
    if (ours.role == evidence::VariantRole::library && ours.status == evidence::Status::failed) leave_out(ours, ours.reason);
  }
  for (evidence::Problem problem : found.problems) {
    problem.message = rank + problem.message;
    if (result_.reason.empty())
      result_.reason = problem.variant.empty() ? problem.message : problem.variant + ": " + problem.message;
    result_.problems.push_back(std::move(problem));
  }
  if (found.status == evidence::Status::failed) result_.status = evidence::Status::failed;
  for (const std::string& warning : found.warnings)
    if (std::ranges::find(result_.warnings, warning) == result_.warnings.end()) warn(rank + warning);
}

void Record::begin_edge(const Case& edge) { edge_ = fmt::format("edge {} ({})", edge.name, edge.sizes); }

void Record::send_partial() const {
  evidence::PairResult partial = result_;
  partial.complete = false;
  partial.watchdog = stages_.records();
  partial.wall_s = stages_.elapsed_s();
  reporter_.send(evidence::json_text(nlohmann::json{{"partial", partial}}));
}

void Record::send_measured() {
  note_host_memory();
  send_partial();
}

evidence::PairResult Record::finish() {
  if (!passed()) {
    for (evidence::VariantResult& variant : result_.variants) clear_claims(variant);
    result_.best.clear();
    // Nothing ran yet, so nothing can be said of any variant, least of all that it passed.
    const auto passed = [](const evidence::VariantResult& variant) { return variant.status == evidence::Status::passed; };
    if (!verified_ && std::ranges::all_of(result_.variants, passed)) result_.variants.clear();
  }
  evidence::name_limits(result_);
  note_host_memory();
  result_.watchdog = stages_.records();
  result_.wall_s = stages_.elapsed_s();
  return std::move(result_);
}

void Record::note_host_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  for (evidence::VariantResult& variant : result_.variants)
    if (variant.memory.host_peak_rss_bytes == 0)
      variant.memory.host_peak_rss_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace aisp::run
