// SPDX-License-Identifier: Apache-2.0
#include "peak/levels/levels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include "base/text.hpp"
#include "machine/chips.hpp"
#include "machine/gpu_specs.hpp"
#include "machine/host.hpp"
#include "measure/statistics/statistics.hpp"

namespace aisp::peak {
namespace {

using nlohmann::json;
using Row = std::vector<std::string>;

std::string cycles_text(double cycles) { return cycles > 0 ? base::significant(cycles) : "-"; }
std::string ns_text(double ns) { return ns > 0 ? base::significant(ns) + " ns" : "-"; }
std::string rate_text(double bytes_s) { return bytes_s > 0 ? base::human_rate(bytes_s, "B") : "-"; }

Row row_of(const char* name, const ChasePoint& point, const char* holds) {
  return {
      name, base::human_bytes(point.bytes) + holds, "-", ns_text(point.ns), cycles_text(point.cycles), rate_text(point.bytes_s)};
}

std::string holds_text(const MemoryLevel& level) {
  return level.beyond_bytes > 0
             ? fmt::format("{} (not {})", base::human_bytes(level.held_bytes), base::human_bytes(level.beyond_bytes))
             : fmt::format("tried up to {}", base::human_bytes(level.held_bytes));
}

Row row_of(const MemoryLevel& level, const std::string& name, const std::vector<Stated>& stated) {
  const Stated* const by = stated_of(level, stated);
  return {
      name,
      holds_text(level),
      by == nullptr ? "-" : fmt::format("{}{} ({})", base::human_bytes(by->bytes), machine::mark(!by->doubt.empty()), by->source),
      ns_text(level.ns),
      cycles_text(level.cycles),
      rate_text(level.bytes_s)};
}

void add_halves(const MemoryLevels& levels, std::vector<Row>& rows) {
  if (!levels.l2) return;
  const auto share = [](double part) { return fmt::format("{:.0f} % of its lines", part * 100); };
  rows.push_back({"  L2, near half", share(1 - levels.l2->far_share), "-", "-", cycles_text(levels.l2->near), "-"});
  rows.push_back({"  L2, far half", share(levels.l2->far_share), "-", "-", cycles_text(levels.l2->far), "-"});
}

json level_json(const MemoryLevel& level, const std::vector<Stated>& stated) {
  const Stated* const by = stated_of(level, stated);
  return {{"name", level.name},
          {"latency_ns", level.ns},
          {"latency_cycles", level.cycles},
          {"bytes_s", level.bytes_s},
          {"held_bytes", level.held_bytes},
          {"beyond_bytes", level.beyond_bytes},
          {"stated_bytes", by == nullptr ? json(nullptr) : json(by->bytes)},
          {"source", by == nullptr ? "" : by->source},
          {"doubt", by == nullptr ? "" : by->doubt}};
}

json levels_json(const std::vector<MemoryLevel>& levels, const std::vector<Stated>& stated) {
  json list = json::array();
  for (const MemoryLevel& level : levels) list.push_back(level_json(level, stated));
  return list;
}

constexpr std::size_t least_points = 5;   // of a level
constexpr double price_of_a_level = 0.3;  // in deviations: one more piece must explain more than that
constexpr double flat = 0.12;             // that a level may rise from its beginning to its end
constexpr double same = 0.10;             // that two levels must differ by, or they are one
constexpr double on_the_step = 0.2;       // part of the way to the next level at which a size counts as beyond this one

struct Piece {
  std::size_t first = 0, last = 0;  // both in it
  double level = 0;                 // logarithm
  std::size_t size() const { return last - first + 1; }
};

// Returns the median of the values from `first` to `last`, inclusive.
double median_over(const std::vector<double>& values, std::size_t first, std::size_t last) {
  return measure::median(std::span{values}.subspan(first, last - first + 1));
}

// Logarithms, single outliers replaced by their neighbours' median.
std::vector<double> smoothed(const std::vector<ChasePoint>& points) {
  std::vector<double> raw;
  for (const ChasePoint& point : points) raw.push_back(std::log(std::max(point.ns, 1e-3)));
  std::vector<double> result = raw;
  for (std::size_t i = 1; i + 1 < raw.size(); ++i) result[i] = median_over(raw, i - 1, i + 1);
  return result;
}

// The constant pieces with the least sum of absolute deviations and of a price for each.
std::vector<Piece> constant_pieces(const std::vector<double>& y) {
  const std::size_t count = y.size();
  std::vector<double> cost(count + 1, std::numeric_limits<double>::infinity());
  std::vector<std::size_t> from(count + 1, 0);
  cost[0] = 0;
  for (std::size_t last = 0; last < count; ++last)
    for (std::size_t first = 0; first <= last; ++first) {
      const double level = median_over(y, first, last);
      double deviation = price_of_a_level;
      for (std::size_t i = first; i <= last; ++i) deviation += std::abs(y[i] - level);
      if (cost[first] + deviation >= cost[last + 1]) continue;
      cost[last + 1] = cost[first] + deviation;
      from[last + 1] = first;
    }
  std::vector<Piece> pieces;
  for (std::size_t end = count; end > 0; end = from[end])
    pieces.push_back({from[end], end - 1, median_over(y, from[end], end - 1)});
  std::ranges::reverse(pieces);
  return pieces;
}

bool is_flat(const Piece& piece, const std::vector<double>& y) {
  if (piece.size() < least_points) return false;
  const std::size_t third = std::max<std::size_t>(piece.size() / 3, 1);
  return std::abs(median_over(y, piece.last + 1 - third, piece.last) - median_over(y, piece.first, piece.first + third - 1)) <
         flat;
}

std::vector<Piece> flat_pieces(const std::vector<double>& y) {
  std::vector<Piece> levels;
  for (const Piece& piece : constant_pieces(y)) {
    if (!is_flat(piece, y)) continue;
    if (levels.empty() || piece.level - levels.back().level >= same) levels.push_back(piece);
    // A level that falls again is noise: what a larger set takes, a smaller one does not take longer.
    else levels.back() = {levels.back().first, piece.last, median_over(y, levels.back().first, piece.last)};
  }
  return levels;
}

// The last size before the way to `next` has begun.
std::size_t last_held(const Piece& piece, const Piece& next, const std::vector<double>& y) {
  const double beyond = std::exp(piece.level) + on_the_step * (std::exp(next.level) - std::exp(piece.level));
  std::size_t held = piece.last;
  while (held > piece.first && std::exp(y[held]) > beyond) --held;
  while (held + 1 < next.first && std::exp(y[held + 1]) <= beyond) ++held;
  return held;
}

MemoryLevel level_of(const Piece& piece, const std::vector<ChasePoint>& points) {
  std::vector<double> ns, cycles, rates;
  MemoryLevel level;
  for (std::size_t i = piece.first; i <= piece.last; ++i) {
    ns.push_back(points[i].ns);
    if (points[i].cycles > 0) cycles.push_back(points[i].cycles);
    // The level before still serves a part of smaller data.
    if (points[i].bytes_s > 0 && 2 * i >= piece.first + piece.last) rates.push_back(points[i].bytes_s);
  }
  level.ns = measure::median(ns);
  if (!cycles.empty()) level.cycles = measure::median(cycles);
  if (!rates.empty()) level.bytes_s = measure::median(rates);
  level.first_bytes = points[piece.first].bytes;
  level.held_bytes = points[piece.last].bytes;
  return level;
}

double distance(double a, double b) { return std::abs(std::log(a / b)); }

// std::shuffle gives other orders with other libraries.
void shuffle(std::uint64_t* first, std::size_t count, std::mt19937_64& random) {
  for (std::size_t i = count; i > 1; --i) std::swap(first[i - 1], first[random() % i]);
}

std::vector<std::uint64_t> shuffled(std::size_t count, std::mt19937_64& random) {
  std::vector<std::uint64_t> order(count);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  shuffle(order.data(), count, random);
  return order;
}

}  // namespace

LevelsFound found_in(const MemoryLevels& levels, std::vector<Stated> stated) {
  LevelsFound found{find_levels(levels.lines), find_levels(levels.pages), std::move(stated)};
  name_levels(found.memory, found.stated, levels.registers ? "HBM" : "DRAM");
  return found;
}

std::vector<Stated> stated_sizes(const machine::Gpu& gpu) {
  std::vector<Stated> stated;
  if (const int kib = machine::chip_of(gpu.sm).unified_kib; kib > 0)
    stated.push_back({"L1", kib * 1024.0, "programming guide, with shared memory"});
  const machine::GpuSpec* const spec = gpu.mig ? nullptr : machine::spec_of_reported(gpu.name);
  // The driver knows better than a doubtful sheet.
  if (spec != nullptr && spec->l2_bytes.known() && (!spec->l2_bytes.doubtful() || gpu.l2_bytes == 0))
    stated.push_back({"L2", spec->l2_bytes.value, machine::citation(spec->l2_bytes), std::string{spec->l2_bytes.doubt}});
  else if (gpu.l2_bytes > 0) stated.push_back({"L2", static_cast<double>(gpu.l2_bytes), "the driver"});
  return stated;
}

std::vector<Stated> stated_sizes_of_host() {
  std::vector<Stated> stated;
  for (const machine::CpuCache& cache : machine::read_cpu_caches())
    if (cache.type != "Instruction" && cache.bytes > 0)
      stated.push_back({"L" + std::to_string(cache.level), static_cast<double>(cache.bytes), "the system"});
  return stated;
}

std::vector<Row> level_rows(const MemoryLevels& levels, const LevelsFound& found) {
  std::vector<Row> rows{{"level", "holds", "stated", "latency", "cycles", "bandwidth"}};
  if (levels.registers) rows.push_back(row_of("registers", *levels.registers, " an SM"));
  if (levels.shared) rows.push_back(row_of("shared memory", *levels.shared, " an SM at most"));
  bool halves_are_there = false;
  for (const MemoryLevel& level : found.memory) {
    rows.push_back(row_of(level, level.name.empty() ? "a further step" : level.name, found.stated));
    if (level.name == "L2") {
      add_halves(levels, rows);
      halves_are_there = true;
    }
  }
  if (!halves_are_there) add_halves(levels, rows);
  for (std::size_t i = 0; i < found.translation.size(); ++i) {
    const bool last = found.translation[i].beyond_bytes == 0;
    const std::string name = last && i > 0 ? "beyond the TLBs" : fmt::format("TLB reach {}", i + 1);
    rows.push_back(row_of(found.translation[i], name, {}));
  }
  // For the host neither is measured.
  for (std::ptrdiff_t column = 5; column > 3; --column) {
    const auto says = [&](const Row& row) { return row[static_cast<std::size_t>(column)] != "-"; };
    if (std::any_of(rows.begin() + 1, rows.end(), says)) continue;
    for (Row& row : rows) row.erase(row.begin() + column);
  }
  return rows;
}

std::vector<std::string> level_notes(const MemoryLevels& levels, const LevelsFound& found) {
  std::vector<std::string> notes;
  for (const Stated& each : found.stated) {
    if (!each.doubt.empty()) notes.push_back(fmt::format("doubtful data sheet (?): {}: {}", each.name, each.doubt));
    if (std::ranges::find(found.memory, each.name, &MemoryLevel::name) == found.memory.end())
      notes.push_back(
          fmt::format("{}: no step near the {} that are stated ({})", each.name, base::human_bytes(each.bytes), each.source));
  }
  if (!levels.pages.empty() && found.translation.size() < 2)
    notes.push_back(fmt::format("TLB: no step up to {}, with one line of each {}", base::human_bytes(levels.pages.back().bytes),
                                base::human_bytes(levels.page_bytes)));
  return notes;
}

void add_levels(json& record, const LevelsFound& found) {
  record["levels"] = levels_json(found.memory, found.stated);
  record["translation"] = levels_json(found.translation, {});
}

std::vector<MemoryLevel> find_levels(const std::vector<ChasePoint>& points) {
  if (points.size() < least_points) return {};
  const std::vector<double> y = smoothed(points);
  const std::vector<Piece> pieces = flat_pieces(y);
  std::vector<MemoryLevel> levels;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    levels.push_back(level_of(pieces[i], points));
    if (i + 1 == pieces.size()) continue;
    const std::size_t held = last_held(pieces[i], pieces[i + 1], y);
    levels.back().held_bytes = points[held].bytes;
    levels.back().beyond_bytes = points[held + 1].bytes;
  }
  return levels;
}

const Stated* stated_of(const MemoryLevel& level, const std::vector<Stated>& stated) {
  const auto found = std::ranges::find(stated, level.name, &Stated::name);
  return level.name.empty() || found == stated.end() ? nullptr : &*found;
}

void name_levels(std::vector<MemoryLevel>& levels, const std::vector<Stated>& stated, const std::string& memory) {
  if (levels.empty()) return;
  for (const Stated& each : stated) {
    MemoryLevel* nearest = nullptr;
    for (MemoryLevel& level : levels)
      if (level.beyond_bytes > 0 && level.name.empty() && distance(level.held_bytes, each.bytes) <= std::log(2.0) &&
          (nearest == nullptr || distance(level.held_bytes, each.bytes) < distance(nearest->held_bytes, each.bytes)))
        nearest = &level;
    if (nearest != nullptr) nearest->name = each.name;
  }
  if (levels.size() > 1) levels.back().name = memory;
}

std::optional<TwoKinds> two_kinds(std::vector<double> values, double least_ratio) {
  constexpr std::size_t least = 16;
  constexpr double rare = 0.1;
  if (values.size() < 2 * least) return std::nullopt;
  std::ranges::sort(values);
  // The cut that leaves the least spread on both sides.
  const std::size_t count = values.size();
  std::vector<double> sums(count + 1, 0), squares(count + 1, 0);
  for (std::size_t i = 0; i < count; ++i) {
    sums[i + 1] = sums[i] + values[i];
    squares[i + 1] = squares[i] + values[i] * values[i];
  }
  const auto spread = [&](std::size_t first, std::size_t end) {
    const double sum = sums[end] - sums[first];
    return squares[end] - squares[first] - sum * sum / static_cast<double>(end - first);
  };
  std::size_t cut = 1;
  for (std::size_t i = 2; i < count; ++i)
    if (spread(0, i) + spread(i, count) < spread(0, cut) + spread(cut, count)) cut = i;
  const double far_share = static_cast<double>(count - cut) / static_cast<double>(count);
  if (far_share < rare || far_share > 1 - rare) return std::nullopt;
  const TwoKinds kinds{median_over(values, 0, cut - 1), median_over(values, cut, count - 1), far_share};
  // Cutting values of one kind, however widely spread, leaves about a third of the spread; cutting two kinds leaves next to
  // nothing.
  const bool apart = spread(0, cut) + spread(cut, count) < 0.2 * spread(0, count);
  return apart && kinds.far >= kinds.near * least_ratio ? std::optional{kinds} : std::nullopt;
}

std::vector<std::size_t> chase_sizes(std::size_t first, std::size_t last, int per_octave, std::size_t multiple) {
  std::vector<std::size_t> sizes;
  for (int i = 0;; ++i) {
    const double wanted = static_cast<double>(first) * std::exp2(static_cast<double>(i) / per_octave);
    const std::size_t size = static_cast<std::size_t>(std::llround(wanted / static_cast<double>(multiple))) * multiple;
    if (size > last) return sizes;
    if (size > 0 && (sizes.empty() || size > sizes.back())) sizes.push_back(size);
  }
}

std::vector<std::uint64_t> chase_of_lines(std::size_t bytes, std::size_t line, std::size_t window, std::uint64_t seed) {
  std::mt19937_64 random{seed};
  const std::size_t lines = bytes / line, in_window = std::max<std::size_t>(window / line, 1);
  std::vector<std::uint64_t> order;
  order.reserve(lines);
  for (const std::uint64_t index : shuffled((lines + in_window - 1) / in_window, random)) {
    const std::size_t first = index * in_window, count = std::min(in_window, lines - first);
    for (const std::uint64_t place : shuffled(count, random)) order.push_back((first + place) * line);
  }
  return order;
}

std::vector<std::uint64_t> chase_of_pages(std::size_t bytes, std::size_t line, std::size_t page, std::uint64_t seed) {
  std::mt19937_64 random{seed};
  const std::size_t lines_in_page = page / line;
  std::vector<std::uint64_t> order = shuffled(bytes / page, random);
  for (std::uint64_t& index : order) index = index * page + random() % lines_in_page * line;
  return order;
}

}  // namespace aisp::peak
