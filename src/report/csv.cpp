// SPDX-License-Identifier: Apache-2.0
#include "report/csv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include "base/text.hpp"
#include "evidence/quantities.hpp"
#include "report/quote.hpp"

namespace aisp::report {
namespace {

using evidence::PairResult;
using evidence::Quantity;
using evidence::VariantResult;

std::string csv_number(double value) { return fmt::format("{:.9g}", value); }

std::string csv_number(const Quantity& quantity, double value) {
  const bool whole = quantity.format == evidence::Format::bytes || quantity.format == evidence::Format::count;
  return whole ? fmt::format("{:.0f}", value) : csv_number(value);
}

// The name of a column, and what stands in it; there is no variant where a pair ended without any.
struct CsvColumn {
  std::string_view name;
  std::string (*text)(const PairResult& pair, const VariantResult* variant);
};

constexpr CsvColumn before[] = {
    {"target", [](const PairResult& pair, const VariantResult*) { return pair.target; }},
    {"variant", [](const PairResult&, const VariantResult* v) { return v != nullptr ? v->name : ""; }},
    {"role", [](const PairResult&, const VariantResult* v) { return std::string{v != nullptr ? to_string(v->role) : ""}; }},
    {"is_lesson", [](const PairResult& pair,
                     const VariantResult* v) { return std::string{v != nullptr && v->name == pair.lesson ? "yes" : ""}; }},
    {"computes_output",
     [](const PairResult&, const VariantResult* v) {
       return std::string{v == nullptr ? "" : v->computes_output ? "yes" : "no"};
     }},
    {"not_run", [](const PairResult&, const VariantResult* v) { return std::string{v != nullptr && v->not_run ? "yes" : ""}; }},
    {"pair_status", [](const PairResult& pair, const VariantResult*) { return std::string{to_string(pair.status)}; }},
    {"variant_status",
     [](const PairResult&, const VariantResult* v) { return std::string{v != nullptr ? to_string(v->status) : ""}; }},
};

constexpr CsvColumn after[] = {
    {"scale", [](const PairResult& pair, const VariantResult*) { return csv_number(pair.scale); }},
    {"case", [](const PairResult& pair, const VariantResult*) { return pair.sweep_case; }},
    {"sizes", [](const PairResult& pair, const VariantResult*) { return sizes_text(pair); }},
    {"sizes_set", [](const PairResult& pair, const VariantResult*) { return std::string{pair.sizes_set ? "yes" : ""}; }},
    {"reason",
     [](const PairResult& pair, const VariantResult* v) { return v == nullptr || v->reason.empty() ? pair.reason : v->reason; }},
};

// "NVIDIA H200", "2 x NVIDIA H200"; empty for a host pair and for one that no GPU was found for.
std::string gpu_text(const evidence::Manifest& manifest, const PairResult& pair) {
  std::map<std::string, std::size_t> names;
  for (const std::string& uuid : pair.gpus) {
    const std::vector<evidence::ManifestGpu>& gpus = manifest_of(pair, manifest).gpus;
    const auto gpu = std::ranges::find(gpus, uuid, &evidence::ManifestGpu::uuid);
    if (gpu != gpus.end()) ++names[gpu->name];
  }
  std::vector<std::string> texts;
  for (const auto& [name, number] : names) texts.push_back(number > 1 ? fmt::format("{} x {}", number, name) : name);
  return base::join(texts, ", ");
}

// So that the rows of several machines can stand in one table.
struct RunColumn {
  std::string_view name;
  std::string (*text)(const evidence::Manifest& manifest, const PairResult& pair, const VariantResult* variant);
};

constexpr RunColumn last[] = {
    {"is_best",
     [](const evidence::Manifest&, const PairResult& pair, const VariantResult* v) {
       const bool best = v != nullptr && v->name == pair.best && claimable(pair, *v) != nullptr;
       return std::string{best ? "yes" : ""};
     }},
    {"gpu",
     [](const evidence::Manifest& manifest, const PairResult& pair, const VariantResult*) { return gpu_text(manifest, pair); }},
    {"commit", [](const evidence::Manifest& manifest, const PairResult&,
                  const VariantResult*) { return manifest.commit + (manifest.dirty ? "+changes" : ""); }},
    {"machine", [](const evidence::Manifest&, const PairResult& pair, const VariantResult*) { return pair.machine; }},
    {"run_id", [](const evidence::Manifest& manifest, const PairResult&, const VariantResult*) { return manifest.run_id; }},
    {"started_utc", [](const evidence::Manifest&, const PairResult& pair, const VariantResult*) { return pair.started_utc; }},
};

void add_figure(const Quantity& quantity, const PairResult& pair, const VariantResult* variant,
                std::vector<std::string>& fields) {
  if (quantity.words != nullptr) {
    fields.push_back(variant != nullptr ? quantity.words(pair, *variant) : "");
    return;
  }
  const std::optional<evidence::Range> range = variant != nullptr ? quantity.get(pair, *variant) : std::nullopt;
  fields.push_back(range ? csv_number(quantity, range->value) : "");
  if (!quantity.interval_in_csv) return;
  fields.push_back(range ? csv_number(quantity, range->low) : "");
  fields.push_back(range ? csv_number(quantity, range->high) : "");
}

// "speedup_low", "energy_low_j": a unit stays at the end.
std::string end_of(std::string_view id, std::string_view end) {
  constexpr std::string_view unit = "_j";
  const bool has_unit = id.ends_with(unit);
  const std::string name{has_unit ? id.substr(0, id.size() - unit.size()) : id};
  return name + "_" + std::string{end} + (has_unit ? std::string{unit} : "");
}

void add_names(std::vector<std::string>& names, bool last_in_csv) {
  for (const Quantity& quantity : evidence::quantities()) {
    if (!quantity.in_csv || quantity.last_in_csv != last_in_csv) continue;
    names.emplace_back(quantity.id);
    if (quantity.interval_in_csv) names.insert(names.end(), {end_of(quantity.id, "low"), end_of(quantity.id, "high")});
  }
}

std::string head() {
  std::vector<std::string> names;
  for (const CsvColumn& column : before) names.emplace_back(column.name);
  add_names(names, false);
  for (const CsvColumn& column : after) names.emplace_back(column.name);
  add_names(names, true);
  for (const RunColumn& column : last) names.emplace_back(column.name);
  return csv_line(names);
}

void add_figures(const PairResult& pair, const VariantResult* variant, bool last_in_csv, std::vector<std::string>& fields) {
  for (const Quantity& quantity : evidence::quantities())
    if (quantity.in_csv && quantity.last_in_csv == last_in_csv) add_figure(quantity, pair, variant, fields);
}

std::string row(const evidence::Manifest& manifest, const PairResult& pair, const VariantResult* variant) {
  std::vector<std::string> fields;
  for (const CsvColumn& column : before) fields.push_back(column.text(pair, variant));
  add_figures(pair, variant, false, fields);
  for (const CsvColumn& column : after) fields.push_back(column.text(pair, variant));
  add_figures(pair, variant, true, fields);
  for (const RunColumn& column : last) fields.push_back(column.text(manifest, pair, variant));
  return csv_line(fields);
}

}  // namespace

std::string suite_csv(const evidence::SuiteResult& suite, const evidence::Manifest& manifest) {
  std::string text = head();
  for (const PairResult& pair : suite.pairs) {
    if (pair.variants.empty()) text += row(manifest, pair, nullptr);
    for (const VariantResult& variant : pair.variants) text += row(manifest, pair, &variant);
  }
  return text;
}

}  // namespace aisp::report
