// SPDX-License-Identifier: Apache-2.0
#include "report/artifacts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/system/files.hpp"
#include "base/text.hpp"
#include "evidence/json.hpp"
#include "evidence/quantities.hpp"
#include "evidence/run_summary.hpp"
#include "report/markdown/markdown.hpp"
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

// A row of the file; there is no variant where a pair ended without any.
struct CsvRow {
  const evidence::Manifest& manifest;
  const PairResult& pair;
  const VariantResult* variant;
};

std::string yes_if(bool holds) { return holds ? "yes" : ""; }

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

struct CsvColumn {
  std::string_view name;
  std::string (*text)(const CsvRow& row);
};

constexpr CsvColumn before[] = {
    {"target", [](const CsvRow& r) { return r.pair.target; }},
    {"variant", [](const CsvRow& r) { return r.variant != nullptr ? r.variant->name : ""; }},
    {"role", [](const CsvRow& r) { return std::string{r.variant != nullptr ? to_string(r.variant->role) : ""}; }},
    {"is_lesson", [](const CsvRow& r) { return yes_if(r.variant != nullptr && r.variant->name == r.pair.lesson); }},
    {"computes_output",
     [](const CsvRow& r) {
       return std::string{r.variant == nullptr ? "" : r.variant->computes_output ? "yes" : "no"};
     }},
    {"not_run", [](const CsvRow& r) { return yes_if(r.variant != nullptr && r.variant->not_run); }},
    {"pair_status", [](const CsvRow& r) { return std::string{to_string(r.pair.status)}; }},
    {"variant_status", [](const CsvRow& r) { return std::string{r.variant != nullptr ? to_string(r.variant->status) : ""}; }},
};

constexpr CsvColumn after[] = {
    {"scale", [](const CsvRow& r) { return csv_number(r.pair.scale); }},
    {"case", [](const CsvRow& r) { return r.pair.sweep_case; }},
    {"sizes", [](const CsvRow& r) { return sizes_text(r.pair); }},
    {"sizes_set", [](const CsvRow& r) { return yes_if(r.pair.sizes_set); }},
    {"reason",
     [](const CsvRow& r) { return r.variant == nullptr || r.variant->reason.empty() ? r.pair.reason : r.variant->reason; }},
};

// So that the rows of several machines can stand in one table.
constexpr CsvColumn last[] = {
    {"is_best",
     [](const CsvRow& r) {
       return yes_if(r.variant != nullptr && r.variant->name == r.pair.best && claimable(r.pair, *r.variant) != nullptr);
     }},
    {"gpu", [](const CsvRow& r) { return gpu_text(r.manifest, r.pair); }},
    {"commit", [](const CsvRow& r) { return r.manifest.commit + (r.manifest.dirty ? "+changes" : ""); }},
    {"machine", [](const CsvRow& r) { return r.pair.machine; }},
    {"run_id", [](const CsvRow& r) { return r.manifest.run_id; }},
    {"started_utc", [](const CsvRow& r) { return r.pair.started_utc; }},
};

void add_figure(const Quantity& quantity, const CsvRow& row, std::vector<std::string>& fields) {
  if (quantity.words != nullptr) {
    fields.push_back(row.variant != nullptr ? quantity.words(row.pair, *row.variant) : "");
    return;
  }
  const std::optional<evidence::Range> range = row.variant != nullptr ? quantity.get(row.pair, *row.variant) : std::nullopt;
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
  for (const CsvColumn& column : last) names.emplace_back(column.name);
  return csv_line(names);
}

void add_figures(const CsvRow& row, bool last_in_csv, std::vector<std::string>& fields) {
  for (const Quantity& quantity : evidence::quantities())
    if (quantity.in_csv && quantity.last_in_csv == last_in_csv) add_figure(quantity, row, fields);
}

std::string line_of(const CsvRow& row) {
  std::vector<std::string> fields;
  for (const CsvColumn& column : before) fields.push_back(column.text(row));
  add_figures(row, false, fields);
  for (const CsvColumn& column : after) fields.push_back(column.text(row));
  add_figures(row, true, fields);
  for (const CsvColumn& column : last) fields.push_back(column.text(row));
  return csv_line(fields);
}

}  // namespace

std::string suite_csv(const evidence::SuiteResult& suite, const evidence::Manifest& manifest) {
  std::string text = head();
  for (const PairResult& pair : suite.pairs) {
    if (pair.variants.empty()) text += line_of({manifest, pair, nullptr});
    for (const VariantResult& variant : pair.variants) text += line_of({manifest, pair, &variant});
  }
  return text;
}

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
