// SPDX-License-Identifier: Apache-2.0
#include "peak/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "machine/gpu_specs.hpp"
#include "machine/nvml.hpp"

namespace aisp::peak {
namespace {

std::string beside(Unit unit, double measured, const std::optional<Reference>& reference) {
  if (!reference) return "-";
  return fmt::format("{:.0f} % of {}{}", reference->percent(measured), value_text(unit, reference->value),
                     machine::mark(!reference->doubt.empty()));
}

nlohmann::json reference_json(const std::optional<Reference>& reference, double measured) {
  if (!reference) return nullptr;
  return {{"value", reference->value},
          {"percent", measured > 0 ? nlohmann::json(reference->percent(measured)) : nlohmann::json(nullptr)},
          {"source", reference->source},
          {"doubt", reference->doubt}};
}

}  // namespace

std::string value_text(Unit unit, double value) {
  switch (unit) {
    case Unit::bytes_per_second: return base::human_rate(value, "B");
    case Unit::flop_per_second: return base::human_rate(value, "FLOP");
    case Unit::seconds: return base::display_ms(value * 1e3);
  }
  return {};
}

std::string sustained_text(Unit unit, const std::optional<Sustained>& sustained) {
  if (!sustained) return "-";
  std::string text = value_text(unit, sustained->value);
  if (sustained->sm_clock_mhz > 0) text += fmt::format(", {} MHz", sustained->sm_clock_mhz);
  if (sustained->power_w > 0) text += fmt::format(", {:.0f} W", sustained->power_w);
  if (machine::slows_down(sustained->throttle_reasons))
    text += fmt::format(", {}", machine::throttle_text(sustained->throttle_reasons));
  return text;
}

std::vector<std::vector<std::string>> table_rows(const Record& record, const machine::Gpu* gpu) {
  std::vector<std::vector<std::string>> rows;
  bool recorded = false;
  for (const Known& known : known_figures()) {
    const Figure* figure = record.find(known.id);
    if (figure == nullptr) continue;
    const auto own = gpu != nullptr ? recorded_figure(*gpu, known.id) : std::nullopt;
    recorded = recorded || own.has_value();
    const auto vendor = gpu != nullptr ? vendor_figure(*gpu, known.id) : std::nullopt;
    rows.push_back({std::string{known.title}, value_text(known.unit, figure->value), beside(known.unit, figure->value, vendor),
                    beside(known.unit, figure->value, own), sustained_text(known.unit, figure->sustained), figure->how});
  }
  const bool lasting =
      std::any_of(record.figures.begin(), record.figures.end(), [](const Figure& f) { return f.sustained.has_value(); });
  rows.insert(rows.begin(), {"", lasting ? "burst" : "measured", "of the data sheet", "of the recorded", "sustained", "by"});
  // Columns that say nothing of this machine are left out; from the last, so that the others keep their place.
  for (std::vector<std::string>& row : rows) {
    if (!lasting) row.erase(row.begin() + 4);
    if (!recorded) row.erase(row.begin() + 3);
    if (gpu == nullptr) row.erase(row.begin() + 2);
  }
  return rows;
}

std::string heading(const Record& record) {
  std::string text = record.key.model.empty() ? "unknown processor" : record.key.model;
  if (record.key.cpus > 0) text += ", " + base::plural(static_cast<std::size_t>(record.key.cpus), "CPU");
  if (!record.key.driver.empty()) text += ", driver " + record.key.driver;
  if (record.key.power_limit_w > 0) text += fmt::format(", {:.0f} W", record.key.power_limit_w);
  return fmt::format("{}; measured {}{}{}", text, record.measured_utc, record.quick ? " (quick)" : "",
                     record.partial.empty() ? "" : ", in part");
}

std::string heading(const Levels& levels) { return heading(Record{levels.key, levels.measured_utc}); }

std::vector<std::string> missing(const Record& record) {
  std::vector<std::string> lines;
  for (const Figure& figure : record.figures) {
    const Known* known = find_known(figure.id);
    if (!figure.measured() && known != nullptr) lines.push_back(fmt::format("{}: {}", known->title, figure.why_not));
  }
  return lines;
}

std::vector<std::string> doubtful(const Record& record, const machine::Gpu* gpu) {
  std::vector<machine::Doubt> doubts;
  for (const Known& known : known_figures()) {
    if (gpu == nullptr || record.find(known.id) == nullptr) continue;
    const auto vendor = vendor_figure(*gpu, known.id);
    if (vendor && !vendor->doubt.empty()) doubts.push_back({std::string{known.title}, vendor->doubt});
  }
  return machine::lines_of(doubts);
}

nlohmann::json with_references(const Record& record, const machine::Gpu* gpu) {
  nlohmann::json list = nlohmann::json::array();
  for (const Known& known : known_figures()) {
    const auto found =
        std::find_if(record.figures.begin(), record.figures.end(), [&](const Figure& f) { return f.id == known.id; });
    if (found == record.figures.end()) continue;
    nlohmann::json figure = *found;
    figure["vendor"] = gpu != nullptr ? reference_json(vendor_figure(*gpu, known.id), found->value) : nlohmann::json(nullptr);
    figure["recorded"] = gpu != nullptr ? reference_json(recorded_figure(*gpu, known.id), found->value) : nlohmann::json(nullptr);
    list.push_back(std::move(figure));
  }
  return {{"key", record.key},
          {"measured_utc", record.measured_utc},
          {"quick", record.quick},
          {"partial", record.partial},
          {"figures", std::move(list)}};
}

}  // namespace aisp::peak
