// SPDX-License-Identifier: Apache-2.0
#include "peak/fabric/fabric.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>

#include "base/math/statistics.hpp"
#include "peak/table.hpp"

namespace aisp::peak {
namespace {

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
