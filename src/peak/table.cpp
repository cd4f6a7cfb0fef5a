// SPDX-License-Identifier: Apache-2.0
#include "peak/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "machine/ceilings.hpp"
#include "machine/gpu_specs.hpp"
#include "machine/nvml.hpp"

namespace aisp::peak {
namespace {

using machine::Fact;
using machine::NumberType;

std::optional<Reference> stated_by(const Fact& fact, double part = 1) {
  if (!fact.known() || fact.value <= 0) return std::nullopt;
  return Reference{fact.value * part, machine::citation(fact), fact.doubt};
}

std::optional<Reference> reference_of(double value, const std::string& source) {
  if (value <= 0) return std::nullopt;
  return Reference{value, source, {}};
}

// Figures of the link to the host, with how many of its directions they load at once.
struct HostLink {
  std::string_view id;
  double directions;
};
constexpr std::array host_links{HostLink{figure_id::host_to_device, 1}, HostLink{figure_id::device_to_host, 1},
                                HostLink{figure_id::both_directions, 2}};
constexpr std::array of_memory{figure_id::hbm_read, figure_id::hbm_write, figure_id::hbm_copy, figure_id::hbm_triad};
constexpr std::array of_peers{figure_id::peer_copy, figure_id::peer_pull, figure_id::all_reduce};

// Figures that were recorded on a chip of the kind, beside the rates of its math.
struct RecordedRate {
  std::string_view id;
  double machine::RecordedCeilings::*value;
};
constexpr std::array recorded_rates{RecordedRate{figure_id::hbm_copy, &machine::RecordedCeilings::copy_bytes_s},
                                    RecordedRate{figure_id::hbm_read, &machine::RecordedCeilings::read_bytes_s},
                                    RecordedRate{figure_id::host_to_device, &machine::RecordedCeilings::host_to_device_bytes_s},
                                    RecordedRate{figure_id::device_to_host, &machine::RecordedCeilings::device_to_host_bytes_s},
                                    RecordedRate{figure_id::peer_copy, &machine::RecordedCeilings::peer_bytes_s},
                                    RecordedRate{figure_id::peer_pull, &machine::RecordedCeilings::peer_pull_bytes_s},
                                    RecordedRate{figure_id::graph_node, &machine::RecordedCeilings::launch_s}};

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

// "2 x NVIDIA H200"
std::string models_of(const Fabric& fabric) {
  std::map<std::string, int> counts;
  for (const FabricGpu& gpu : fabric.gpus) ++counts[gpu.name];
  std::vector<std::string> models;
  for (const auto& [model, count] : counts) models.push_back(fmt::format("{} x {}", count, model));
  return base::join(models, ", ");
}

}  // namespace

std::optional<Reference> vendor_figure(const machine::Gpu& gpu, std::string_view id) {
  const auto link = std::ranges::find(host_links, id, &HostLink::id);
  if (link != host_links.end()) return reference_of(machine::theoretical_peaks(gpu).pcie_bytes_s * link->directions, "link rate");
  const machine::GpuSpec* const spec = gpu.mig ? nullptr : machine::spec_of_reported(gpu.name);
  if (spec == nullptr) return std::nullopt;
  if (std::ranges::find(of_memory, id) != of_memory.end()) return stated_by(spec->memory_bytes_s);
  // Sheets count both directions.
  if (std::ranges::find(of_peers, id) != of_peers.end()) return stated_by(spec->link_bytes_s, 0.5);
  for (std::size_t i = 0; i < machine::rate_kinds; ++i)
    if (machine::name_of(static_cast<NumberType>(i)) == id) return stated_by(spec->rate(static_cast<NumberType>(i)));
  return std::nullopt;
}

std::optional<Reference> recorded_figure(const machine::Gpu& gpu, std::string_view id) {
  const machine::RecordedCeilings* const recorded = gpu.mig ? nullptr : machine::recorded_of_reported(gpu.name);
  if (recorded == nullptr) return std::nullopt;
  const std::string source = "recorded on " + std::string{recorded->on};
  for (std::size_t i = 0; i < machine::math_kinds; ++i)
    if (machine::name_of(static_cast<Math>(i)) == id) return reference_of(recorded->flops_s[i], source);
  const auto rate = std::ranges::find(recorded_rates, id, &RecordedRate::id);
  if (rate != recorded_rates.end()) return reference_of(recorded->*rate->value, source);
  if (id == figure_id::all_reduce)
    return reference_of(recorded->all_reduce_bytes_s, source + " with " + std::string{recorded->all_reduce_by});
  return std::nullopt;
}

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

std::vector<std::vector<std::string>> table_rows(const PeakRecord& record, const machine::Gpu* gpu) {
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

std::string heading(const PeakRecord& record) {
  const Key& key = record.key;
  std::string text = record.fabric ? models_of(*record.fabric) : key.model.empty() ? "unknown processor" : key.model;
  if (key.cpus > 0) text += ", " + base::plural(static_cast<std::size_t>(key.cpus), "CPU");
  if (!key.driver.empty()) text += ", driver " + key.driver;
  if (key.power_limit_w > 0) text += fmt::format(", {:.0f} W", key.power_limit_w);
  if (record.fabric && !record.fabric->nccl.empty()) text += ", NCCL " + record.fabric->nccl;
  return fmt::format("{}; measured {}{}{}", text, record.measured_utc, record.quick ? " (quick)" : "",
                     record.partial.empty() ? "" : ", in part");
}

std::vector<std::string> missing(const PeakRecord& record) {
  std::vector<std::string> lines;
  for (const Figure& figure : record.figures) {
    const Known* known = find_known(figure.id);
    if (!figure.measured() && known != nullptr) lines.push_back(fmt::format("{}: {}", known->title, figure.why_not));
  }
  return lines;
}

std::vector<std::string> doubtful(const PeakRecord& record, const machine::Gpu* gpu) {
  std::vector<machine::Doubt> doubts;
  for (const Known& known : known_figures()) {
    if (gpu == nullptr || record.find(known.id) == nullptr) continue;
    const auto vendor = vendor_figure(*gpu, known.id);
    if (vendor && !vendor->doubt.empty()) doubts.push_back({std::string{known.title}, vendor->doubt});
  }
  return machine::lines_of(doubts);
}

void add_references(nlohmann::json& record, const machine::Gpu* gpu) {
  nlohmann::json list = nlohmann::json::array();
  for (const Known& known : known_figures())
    for (nlohmann::json& figure : record["figures"]) {
      if (figure["id"] != known.id) continue;
      const double value = figure["value"];
      figure["vendor"] = gpu != nullptr ? reference_json(vendor_figure(*gpu, known.id), value) : nlohmann::json(nullptr);
      figure["recorded"] = gpu != nullptr ? reference_json(recorded_figure(*gpu, known.id), value) : nlohmann::json(nullptr);
      list.push_back(figure);
    }
  record["figures"] = std::move(list);
}

}  // namespace aisp::peak
