// SPDX-License-Identifier: Apache-2.0
#include "peak/fabric/fabric.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "base/math/statistics.hpp"
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

struct Usual {
  double value = 0, deviation = 0;
  std::string of;
};

constexpr double normal_over_mad = 1.4826;

std::optional<Usual> usual_of(std::vector<double> values, double least_part) {
  if (values.size() < 3) return std::nullopt;
  const double middle = base::median(values);
  for (double& value : values) value = std::abs(value - middle);
  return Usual{middle, std::max(normal_over_mad * base::median(values), least_part * middle),
               fmt::format("the median of {}", values.size())};
}

// The figures that GPUs are compared by. `least_part`: the least deviation, in parts of the median. Five H100s and four H200s
// read memory within 0.4 and 1.9 % of each other, and multiplied within 2.2 and 1.5 %.
struct LinkComparison {
  std::string_view title;
  Unit unit;
  double least_part;
  std::string_view recorded;  // id of the figure that is recorded of models; empty: none
};
constexpr double memory_part = 0.008, product_part = 0.017, link_part = 0.008, latency_part = 0.02;

struct Item {
  std::string subject;
  double value = 0;
};

class Comparer {
 public:
  Comparer(const LinkComparison& comparison, const std::string& model, Judged& judged)
      : comparison_{comparison}, model_{model}, judged_{judged} {}

  // Returns which of the items are slow.
  std::vector<bool> operator()(const std::vector<Item>& items, const std::vector<double>& peers) const {
    std::vector<bool> slow(items.size());
    std::vector<double> values = peers;
    for (const Item& item : items) values.push_back(item.value);
    std::optional<Usual> usual = usual_of(values, comparison_.least_part);
    if (!usual) usual = recorded();
    if (!usual) {
      if (items.size() == 2) tell_difference(items[0], items[1]);
      return slow;
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
      const double deviations = (usual->value - items[i].value) / usual->deviation * (lower_is_better() ? -1 : 1);
      slow[i] = deviations > most_deviations;
      if (slow[i])
        judged_.slow.push_back({items[i].subject, std::string{comparison_.title}, comparison_.unit, items[i].value, usual->value,
                                usual->of, deviations});
    }
    return slow;
  }

 private:
  bool lower_is_better() const { return comparison_.unit == Unit::seconds; }

  std::optional<Usual> recorded() const {
    if (comparison_.recorded.empty()) return std::nullopt;
    machine::Gpu gpu;
    gpu.name = model_;
    const std::optional<Reference> reference = recorded_figure(gpu, comparison_.recorded);
    if (!reference) return std::nullopt;
    return Usual{reference->value, comparison_.least_part * reference->value, reference->source};
  }

  void tell_difference(const Item& a, const Item& b) const {
    const double part = std::abs(a.value - b.value) / std::max(a.value, b.value);
    if (part > most_deviations * comparison_.least_part)
      judged_.unclear.push_back(
          fmt::format("{} and {} differ by {:.0f} % in {}, and of two nothing tells which is slow: give "
                      "recorded peers with --peers",
                      a.subject, b.subject, part * 100, comparison_.title));
  }

  const LinkComparison& comparison_;
  const std::string& model_;
  Judged& judged_;
};

template <class ItemsOf>
std::vector<double> values_of_all(const std::vector<Fabric>& fabrics, const ItemsOf& items_of) {
  std::vector<double> values;
  for (const Fabric& fabric : fabrics)
    for (const Item& item : items_of(fabric)) values.push_back(item.value);
  return values;
}

std::string name_of_gpu(int ordinal) { return fmt::format("GPU {}", ordinal); }

// Figures of the GPUs themselves.
struct OwnComparison {
  LinkComparison comparison;
  std::string_view id;
  bool sustained;
};
constexpr std::array own_comparisons{
    OwnComparison{{"HBM read", Unit::bytes_per_second, memory_part, figure_id::hbm_read}, figure_id::hbm_read, false},
    OwnComparison{{"HBM copy", Unit::bytes_per_second, memory_part, figure_id::hbm_copy}, figure_id::hbm_copy, false},
    OwnComparison{{"BF16 product", Unit::flop_per_second, product_part, "bf16"}, "bf16", false},
    OwnComparison{{"BF16 product, sustained", Unit::flop_per_second, product_part, ""}, "bf16", true}};

std::vector<Item> own_items(const Fabric& fabric, const std::string& model, const OwnComparison& own) {
  std::vector<Item> items;
  for (const FabricGpu& gpu : fabric.gpus) {
    const Figure* const figure = gpu.name == model ? gpu.find(own.id) : nullptr;
    if (figure == nullptr || (own.sustained && !figure->sustained)) continue;
    items.push_back({name_of_gpu(gpu.ordinal), own.sustained ? figure->sustained->value : figure->value});
  }
  return items;
}

// Figures of the paths.
using PairValue = double (*)(const FabricPair&);
double rate_of(const FabricPair& pair) { return pair.bytes_s; }
double latency_of(const FabricPair& pair) { return pair.latency_s; }

struct PathKind {
  std::string model, path;
  bool has(const Fabric& fabric, const FabricPair& pair) const {
    const auto of = [&](int ordinal) {
      const auto found = std::ranges::find(fabric.gpus, ordinal, &FabricGpu::ordinal);
      return found != fabric.gpus.end() && found->name == model;
    };
    return pair.path == path && of(pair.from) && of(pair.to);
  }
};

// Returns the best value of each GPU over its paths of that kind: one bad link does not make it slow, and a slow neighbour does
// not.
std::vector<Item> best_of_gpus(const Fabric& fabric, const PathKind& kind, PairValue value, int FabricPair::*end,
                               bool lower_is_better) {
  std::vector<Item> items;
  for (const FabricGpu& gpu : fabric.gpus) {
    std::optional<double> best;
    for (const FabricPair& pair : fabric.pairs) {
      if (pair.*end != gpu.ordinal || !kind.has(fabric, pair) || value(pair) <= 0) continue;
      best = !best ? value(pair) : lower_is_better ? std::min(*best, value(pair)) : std::max(*best, value(pair));
    }
    if (best) items.push_back({name_of_gpu(gpu.ordinal), *best});
  }
  return items;
}

struct PathComparison {
  LinkComparison sending, receiving, single;
  PairValue value;
  bool lower_is_better() const { return single.unit == Unit::seconds; }
};
constexpr std::array path_comparisons{PathComparison{{"copies to other GPUs", Unit::bytes_per_second, link_part, ""},
                                                     {"copies from other GPUs", Unit::bytes_per_second, link_part, ""},
                                                     {"copy", Unit::bytes_per_second, link_part, figure_id::peer_copy},
                                                     rate_of},
                                      PathComparison{{"loads from other GPUs", Unit::seconds, latency_part, ""},
                                                     {"loads by other GPUs", Unit::seconds, latency_part, ""},
                                                     {"load", Unit::seconds, latency_part, ""},
                                                     latency_of}};

std::vector<Item> single_paths(const Fabric& fabric, const PathKind& kind, PairValue value,
                               const std::set<std::string>& without) {
  std::vector<Item> items;
  for (const FabricPair& pair : fabric.pairs) {
    const std::string from = name_of_gpu(pair.from), to = name_of_gpu(pair.to);
    if (kind.has(fabric, pair) && value(pair) > 0 && !without.contains(from) && !without.contains(to))
      items.push_back({fmt::format("{} to {}", from, to), value(pair)});
  }
  return items;
}

// GPUs first, then single paths between those that are not slow by themselves. Of two GPUs there are only paths.
void judge_paths(const Fabric& fabric, const std::vector<Fabric>& peers, const PathKind& kind, const PathComparison& by,
                 Judged& judged) {
  std::set<std::string> slow_gpus;
  const auto compare_ends = [&](const LinkComparison& comparison, int FabricPair::*end) {
    const auto items_of = [&](const Fabric& of) { return best_of_gpus(of, kind, by.value, end, by.lower_is_better()); };
    const std::vector<Item> items = items_of(fabric);
    if (items.size() < 3) return;
    const std::vector<bool> slow = Comparer{comparison, kind.model, judged}(items, values_of_all(peers, items_of));
    for (std::size_t i = 0; i < items.size(); ++i)
      if (slow[i]) slow_gpus.insert(items[i].subject);
  };
  compare_ends(by.sending, &FabricPair::from);
  compare_ends(by.receiving, &FabricPair::to);
  Comparer{by.single, kind.model, judged}(
      single_paths(fabric, kind, by.value, slow_gpus),
      values_of_all(peers, [&](const Fabric& peer) { return single_paths(peer, kind, by.value, {}); }));
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

Judged judge(const Fabric& fabric, const std::vector<Fabric>& peers) {
  Judged judged;
  std::set<std::string> models, paths;
  for (const FabricGpu& gpu : fabric.gpus) models.insert(gpu.name);
  for (const FabricPair& pair : fabric.pairs) paths.insert(pair.path);
  for (const std::string& model : models) {
    for (const OwnComparison& own : own_comparisons) {
      const auto items_of = [&](const Fabric& of) { return own_items(of, model, own); };
      Comparer{own.comparison, model, judged}(items_of(fabric), values_of_all(peers, items_of));
    }
    for (const std::string& path : paths)
      for (const PathComparison& by : path_comparisons) judge_paths(fabric, peers, {model, path}, by, judged);
  }
  return judged;
}

}  // namespace aisp::peak
