// SPDX-License-Identifier: Apache-2.0
#include "report/csv.hpp"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <vector>

#include "report/numbers.hpp"
#include "report/quote.hpp"

namespace aisp::report {
namespace {

constexpr auto columns = std::to_array<std::string_view>({"target",
                                                          "variant",
                                                          "role",
                                                          "is_lesson",
                                                          "computes_output",
                                                          "not_run",
                                                          "pair_status",
                                                          "variant_status",
                                                          "median_ms",
                                                          "mean_ms",
                                                          "std_ms",
                                                          "min_ms",
                                                          "max_ms",
                                                          "p95_ms",
                                                          "p99_ms",
                                                          "iterations",
                                                          "speedup",
                                                          "speedup_low",
                                                          "speedup_high",
                                                          "verdict",
                                                          "gain_over",
                                                          "gain",
                                                          "gain_low",
                                                          "gain_high",
                                                          "library",
                                                          "percent_of_library",
                                                          "percent_of_library_low",
                                                          "percent_of_library_high",
                                                          "percent_of_floor",
                                                          "limiter",
                                                          "relative_l2",
                                                          "energy_j",
                                                          "energy_low_j",
                                                          "energy_high_j",
                                                          "energy_ratio",
                                                          "average_w",
                                                          "device_peak_bytes",
                                                          "device_reserved_bytes",
                                                          "host_peak_rss_bytes",
                                                          "ttft_p50_ms",
                                                          "ttft_p99_ms",
                                                          "tpot_p50_ms",
                                                          "tpot_p99_ms",
                                                          "good_requests_per_second",
                                                          "scale",
                                                          "case",
                                                          "sizes",
                                                          "sizes_set",
                                                          "reason"});

std::string number(double value) { return fmt::format("{:.9g}", value); }

std::vector<std::string> workload_fields(const evidence::PairResult& pair) {
  return {number(pair.scale), pair.sweep_case, sizes_text(pair), pair.sizes_set ? "yes" : ""};
}

std::string row_without_variant(const evidence::PairResult& pair) {
  std::vector<std::string> fields(columns.size());
  fields[0] = pair.target;
  fields[6] = to_string(pair.status);
  std::vector<std::string> workload = workload_fields(pair);
  std::move(workload.begin(), workload.end(), fields.end() - 5);
  fields[columns.size() - 1] = pair.reason;
  return csv_line(fields);
}

std::string bytes(std::uint64_t value) { return value == 0 ? std::string{} : std::to_string(value); }

void add_usage(const evidence::VariantResult& variant, std::vector<std::string>& fields) {
  if (const auto& energy = variant.energy) {
    for (const double value : {energy->median_j, energy->low_j, energy->high_j}) fields.push_back(number(value));
    fields.push_back(energy->ratio ? number(energy->ratio->value) : "");
    fields.push_back(number(energy->average_w));
  } else {
    fields.resize(fields.size() + 5);
  }
  const evidence::MemoryUse& memory = variant.memory;
  for (const std::uint64_t value : {memory.device_peak_bytes, memory.device_reserved_bytes, memory.host_peak_rss_bytes})
    fields.push_back(bytes(value));
  if (const auto& inference = variant.inference) {
    for (const double value : {inference->ttft_ms.p50, inference->ttft_ms.p99, inference->tpot_ms.p50, inference->tpot_ms.p99})
      fields.push_back(number(value));
    fields.push_back(inference->goodput ? number(inference->goodput->requests_per_second) : "");
  } else {
    fields.resize(fields.size() + 5);
  }
}

void add_claims(const evidence::PairResult& pair, const evidence::VariantResult& variant, std::vector<std::string>& fields) {
  const evidence::Speedup* speedup = claimable(pair, variant);
  if (speedup != nullptr) {
    for (const double value : {speedup->value, speedup->low, speedup->high}) fields.push_back(number(value));
    fields.emplace_back(to_string(speedup->verdict));
  } else {
    fields.resize(fields.size() + 4);
  }
  if (speedup != nullptr && variant.gain) {
    fields.push_back(variant.gain->over);
    for (const double value : {variant.gain->ratio.value, variant.gain->ratio.low, variant.gain->ratio.high})
      fields.push_back(number(value));
  } else {
    fields.resize(fields.size() + 4);
  }
  if (const evidence::LibraryShare* share = claimable_share(pair, variant)) {
    fields.push_back(share->library);
    for (const double value : {share->percent, share->low, share->high}) fields.push_back(number(value));
  } else {
    fields.resize(fields.size() + 4);
  }
}

std::string row(const evidence::PairResult& pair, const evidence::VariantResult& variant) {
  std::vector<std::string> fields{pair.target,
                                  variant.name,
                                  std::string{to_string(variant.role)},
                                  variant.name == pair.lesson ? "yes" : "",
                                  variant.computes_output ? "yes" : "no",
                                  variant.not_run ? "yes" : "",
                                  std::string{to_string(pair.status)},
                                  std::string{to_string(variant.status)}};
  if (variant.timing) {
    const evidence::Summary& s = variant.timing->summary;
    for (const double value : {s.median, s.mean, s.std, s.min, s.max, s.p95, s.p99}) fields.push_back(number(value));
    fields.push_back(std::to_string(s.count));
  } else {
    fields.resize(fields.size() + 8);
  }
  add_claims(pair, variant, fields);
  fields.push_back(variant.floor ? number(variant.floor->percent) : "");
  fields.push_back(variant.floor ? variant.floor->limiter : "");
  fields.push_back(variant.accuracy ? number(variant.accuracy->relative_l2) : "");
  add_usage(variant, fields);
  for (std::string& field : workload_fields(pair)) fields.push_back(std::move(field));
  fields.push_back(variant.reason.empty() ? pair.reason : variant.reason);
  return csv_line(fields);
}

}  // namespace

std::string suite_csv(const evidence::SuiteResult& suite) {
  std::string text = csv_line({columns.begin(), columns.end()});
  for (const evidence::PairResult& pair : suite.pairs) {
    if (pair.variants.empty()) text += row_without_variant(pair);
    for (const evidence::VariantResult& variant : pair.variants) text += row(pair, variant);
  }
  return text;
}

}  // namespace aisp::report
