// SPDX-License-Identifier: Apache-2.0
#include "peak/fabric/fabric.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "base/text.hpp"
#include "peak/table.hpp"

namespace aisp::peak {
namespace {

std::string rate(double bytes_s) { return bytes_s > 0 ? base::human_rate(bytes_s, "B") : "-"; }
std::string product(double flop_s) { return flop_s > 0 ? base::human_rate(flop_s, "FLOP") : "-"; }
std::string gpu_name(int ordinal) { return fmt::format("GPU{}", ordinal); }

FabricTable gpu_table(const Fabric& fabric) {
  FabricTable table{"Each GPU by itself, all of them at once", {{"", "HBM read", "HBM copy", "BF16 product", "sustained"}}};
  for (const FabricGpu& gpu : fabric.gpus) {
    const auto value = [&](std::string_view id) {
      const Figure* const figure = gpu.find(id);
      return figure != nullptr ? figure->value : 0;
    };
    const Figure* const bf16 = gpu.find("bf16");
    table.rows.push_back({gpu_name(gpu.ordinal), rate(value(figure_id::hbm_read)), rate(value(figure_id::hbm_copy)),
                          product(value("bf16")),
                          bf16 != nullptr ? sustained_text(Unit::flop_per_second, bf16->sustained) : "-"});
  }
  return table;
}

using Cell = std::function<std::string(const FabricPair&)>;

FabricTable matrix(const Fabric& fabric, std::string title, const Cell& cell) {
  FabricTable table{std::move(title), {{""}}};
  for (const FabricGpu& gpu : fabric.gpus) table.rows[0].push_back(gpu_name(gpu.ordinal));
  for (const FabricGpu& from : fabric.gpus) {
    std::vector<std::string>& row = table.rows.emplace_back(1, gpu_name(from.ordinal));
    for (const FabricGpu& to : fabric.gpus) {
      const FabricPair* const pair = fabric.find(from.ordinal, to.ordinal);
      row.push_back(pair != nullptr ? cell(*pair) : "-");
    }
  }
  return table;
}

std::string giga(double per_second) { return per_second > 0 ? fmt::format("{:.1f}", per_second * 1e-9) : "-"; }

FabricTable collective_table(const Fabric& fabric) {
  FabricTable table{
      fmt::format("Collectives of NCCL {} by the size of the larger buffer, fp32, out of place; bandwidths in GB/s as "
                  "nccl-tests count them",
                  fabric.nccl),
      {{"operation", "size", "time", "algbw", "busbw", "wrong"}}};
  for (const CollectiveTime& time : fabric.times)
    table.rows.push_back({std::string{name_of(time.operation)}, base::human_bytes(time.bytes),
                          base::display_ms(time.seconds * 1e3), fmt::format("{:.2f}", time.algorithm_bytes_s() * 1e-9),
                          fmt::format("{:.2f}", time.bus_bytes_s(fabric.gpus.size()) * 1e-9), std::to_string(time.wrong)});
  return table;
}

}  // namespace

// Each rank's data pass its link so often, at least: a sum takes n - 1 additions and n assignments of every element, of which
// all but one cross a link, spread over n links.
double bus_factor(Collective operation, std::size_t ranks) {
  const auto n = static_cast<double>(ranks);
  return (operation == Collective::all_reduce ? 2 : 1) * (n - 1) / n;
}

double CollectiveTime::bus_bytes_s(std::size_t ranks) const { return algorithm_bytes_s() * bus_factor(operation, ranks); }

const FabricPair* Fabric::find(int from, int to) const {
  const auto found = std::ranges::find_if(pairs, [&](const FabricPair& p) { return p.from == from && p.to == to; });
  return found == pairs.end() ? nullptr : &*found;
}

Key fabric_key(const machine::Machine& machine, const std::vector<int>& ordinals) {
  std::vector<std::string> uuids;
  for (const int ordinal : ordinals) uuids.push_back(machine.gpus.at(static_cast<std::size_t>(ordinal)).uuid);
  Key key = key_of(machine.gpus.at(static_cast<std::size_t>(ordinals.at(0))), machine.driver_version);
  key.of = base::join(uuids, ",");
  return key;
}

FabricTable copy_matrix(const Fabric& fabric) {
  return matrix(fabric, "Copies from the row's GPU to the column's, one pair at a time, GB/s",
                [](const FabricPair& pair) { return giga(pair.bytes_s) + (pair.direct ? "" : " (through the host)"); });
}

std::vector<FabricTable> fabric_tables(const Fabric& fabric) {
  std::vector<FabricTable> tables{gpu_table(fabric)};
  if (!fabric.pairs.empty()) {
    tables.push_back(copy_matrix(fabric));
    tables.push_back(matrix(fabric, "Both directions at once, their sum, GB/s",
                            [](const FabricPair& pair) { return giga(pair.both_bytes_s); }));
    tables.push_back(
        matrix(fabric, "Latency of a load by the row's GPU from the column's memory, ns",
               [](const FabricPair& pair) { return pair.latency_s > 0 ? fmt::format("{:.0f}", pair.latency_s * 1e9) : "-"; }));
  }
  if (!fabric.times.empty()) tables.push_back(collective_table(fabric));
  return tables;
}

std::string line_of(const Slow& slow) {
  const auto text = [&](double value) { return value_text(slow.unit, value); };
  return fmt::format("{} is slow: {} {}, {:.0f} % {} {} ({}), {:.1f} deviations", slow.subject, slow.figure, text(slow.value),
                     std::abs(slow.value / slow.usual - 1) * 100, slow.unit == Unit::seconds ? "above" : "below",
                     text(slow.usual), slow.usual_of, slow.deviations);
}

std::vector<std::string> wrong_results(const Fabric& fabric) {
  std::map<Collective, std::vector<std::string>> sizes;
  for (const CollectiveTime& time : fabric.times)
    if (time.wrong > 0) sizes[time.operation].push_back(fmt::format("{} of {}", time.wrong, base::human_bytes(time.bytes)));
  std::vector<std::string> lines;
  for (const auto& [operation, wrong] : sizes)
    lines.push_back(fmt::format("{} gave wrong elements: {}", name_of(operation), base::join(wrong, ", ")));
  return lines;
}

Rows fabric_values(const Fabric& fabric) {
  Rows rows{{"figure", "gpu", "peer", "bytes", "value", "unit"}};
  const auto add = [&](std::string figure, std::string gpu, std::string peer, double bytes, double value, std::string_view unit) {
    if (value > 0)
      rows.push_back({std::move(figure), std::move(gpu), std::move(peer), bytes > 0 ? fmt::format("{:.0f}", bytes) : "",
                      fmt::format("{:.9g}", value), std::string{unit}});
  };
  for (const FabricGpu& gpu : fabric.gpus)
    for (const Figure& figure : gpu.figures) {
      const Known* const known = find_known(figure.id);
      if (known == nullptr) continue;
      add(figure.id, std::to_string(gpu.ordinal), "", 0, figure.value, name_of(known->unit));
      if (figure.sustained)
        add(figure.id + "_sustained", std::to_string(gpu.ordinal), "", 0, figure.sustained->value, name_of(known->unit));
    }
  for (const FabricPair& pair : fabric.pairs) {
    const std::string from = std::to_string(pair.from), to = std::to_string(pair.to);
    add("copy", from, to, 0, pair.bytes_s, "B/s");
    add("copy_both_directions", from, to, 0, pair.both_bytes_s, "B/s");
    add("load_latency", from, to, 0, pair.latency_s, "s");
  }
  for (const CollectiveTime& time : fabric.times) {
    const std::string operation{name_of(time.operation)};
    add(operation + "_time", "", "", time.bytes, time.seconds, "s");
    add(operation + "_algbw", "", "", time.bytes, time.algorithm_bytes_s(), "B/s");
    add(operation + "_busbw", "", "", time.bytes, time.bus_bytes_s(fabric.gpus.size()), "B/s");
  }
  return rows;
}

}  // namespace aisp::peak
