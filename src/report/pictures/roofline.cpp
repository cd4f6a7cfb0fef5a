// SPDX-License-Identifier: Apache-2.0
#include "report/pictures/roofline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/hardware_key.hpp"
#include "base/math/statistics.hpp"
#include "base/text.hpp"
#include "evidence/ceilings.hpp"
#include "evidence/expectations/fingerprint.hpp"
#include "evidence/json.hpp"
#include "evidence/run_summary.hpp"
#include "report/numbers.hpp"

namespace aisp::report {
namespace {

using evidence::Expectations;
using evidence::ExpectedPair;
using evidence::ResultCeilings;
using nlohmann::json;

bool usable(double value) { return std::isfinite(value) && value > 0; }

RooflinePair pair_of(const std::string& chapter, const std::string& name, const ExpectedPair& expected) {
  RooflinePair pair{.target = chapter + ":" + name, .recorded = expected.recorded};
  if (expected.ceilings) pair.ceilings = *expected.ceilings;
  pair.points.push_back({.variant = expected.baseline,
                         .role = evidence::VariantRole::baseline,
                         .median_ms = expected.baseline_median_ms,
                         .cost = expected.baseline_cost});
  for (const auto& [variant, values] : expected.variants)
    pair.points.push_back({.variant = variant,
                           .role = values.role,
                           .lesson = variant == expected.lesson,
                           .median_ms = values.median_ms,
                           .cost = values.cost});
  return pair;
}

// The highest roofs of all records; of hosts, which are of many kinds, those of the latest.
void gather_ceilings(Roofline& roofline) {
  std::vector<const RooflinePair*> latest_first;
  for (const RooflinePair& pair : roofline.pairs) latest_first.push_back(&pair);
  std::stable_sort(latest_first.begin(), latest_first.end(),
                   [](const auto* a, const auto* b) { return a->recorded.date_utc > b->recorded.date_utc; });
  if (!latest_first.empty()) roofline.machine = machine_text(latest_first.front()->recorded);
  ResultCeilings& all = roofline.ceilings;
  const auto may_take = [&](double roof, double own) {
    if (!usable(own)) return false;
    roofline.ceilings_differ = roofline.ceilings_differ || (roof > 0 && roof != own);
    return roof == 0 || roofline.hardware != base::hardware_of_hosts;
  };
  for (const RooflinePair* pair : latest_first) {
    if (all.source.empty()) all.source = pair->ceilings.source;
    const ResultCeilings& own = pair->ceilings;
    if (may_take(all.memory_bytes_s, own.memory_bytes_s))
      evidence::take_better(all.memory_bytes_s, all.memory_from, own.memory_bytes_s, own.memory_from);
    for (const auto& [math, flops_s] : own.flops_s)
      if (const auto known = all.flops_s.find(math); may_take(known == all.flops_s.end() ? 0 : known->second, flops_s))
        evidence::take_better_flops(all, math, flops_s, evidence::source_of_flops(own, math));
  }
}

struct Roof {
  double percent = 0;  // 0: not known
  std::string bound;
  evidence::CeilingFrom from = evidence::CeilingFrom::measured;
};

constexpr std::string_view memory_roof = "memory";

Roof roof_of(const RooflinePoint& point, const ResultCeilings& ceilings) {
  // A result knows the ceiling more exactly: memory's depends on the mix of reads and writes.
  if (point.floor && (point.floor->limiter == memory_roof || point.floor->limiter.starts_with("compute (")))
    return {point.floor->percent, point.floor->limiter, point.floor->ceiling_from};
  const auto math = ceilings.flops_s.find(point.cost.math);
  const bool has_roof = math != ceilings.flops_s.end() && usable(math->second);
  const double compute = has_roof && point.cost.flops > 0 ? point.flops_s() / math->second * 100 : 0;
  const double memory =
      point.crosses_memory() && usable(ceilings.memory_bytes_s) ? point.bytes_s() / ceilings.memory_bytes_s * 100 : 0;
  // The nearer roof is the lower one at this intensity.
  if (compute >= memory && compute > 0)
    return {compute, fmt::format("compute ({})", point.cost.math), evidence::source_of_flops(ceilings, point.cost.math)};
  if (memory > 0) return {memory, std::string{memory_roof}, ceilings.memory_from};
  return {};
}

std::string or_dash(double value, const std::string& text) { return usable(value) ? text : "-"; }

std::vector<std::string> row_of(const RooflinePair& pair, const RooflinePoint& point) {
  const Roof roof = roof_of(point, pair.ceilings);
  std::string name = point.variant;
  if (point.role == evidence::VariantRole::baseline) name += " (baseline)";
  else if (point.role != evidence::VariantRole::optimized) name += fmt::format(" ({})", to_string(point.role));
  else if (point.lesson) name += " (lesson)";
  const std::string bytes = or_dash(point.bytes_s(), base::human_rate(point.bytes_s(), "B"));
  return {pair.target + (pair.stale ? " (stale)" : ""),
          name,
          base::display_ms(point.median_ms),
          point.has_place() ? base::significant(point.intensity()) : "-",
          or_dash(point.flops_s(), base::human_rate(point.flops_s(), "FLOP")),
          bytes == "-" || point.crosses_memory() ? bytes : fmt::format("{} ({})", bytes, to_string(point.cost.bytes_of)),
          or_dash(roof.percent, fmt::format("{}{} %", guess_mark(roof.from), base::significant(roof.percent))),
          roof.bound.empty() ? "-" : roof.bound};
}

json point_json(const RooflinePair& pair, const RooflinePoint& point) {
  json result{{"name", point.variant},     {"role", to_string(point.role)},
              {"is_lesson", point.lesson}, {"median_ms", point.median_ms},
              {"flops", point.cost.flops}, {"bytes", point.cost.bytes},
              {"math", point.cost.math},   {"bytes_of", to_string(point.cost.bytes_of)}};
  if (point.has_place()) result["intensity_flop_per_byte"] = point.intensity();
  if (usable(point.flops_s())) result["flops_s"] = point.flops_s();
  if (usable(point.bytes_s())) result["bytes_s"] = point.bytes_s();
  if (const Roof roof = roof_of(point, pair.ceilings); usable(roof.percent)) {
    result["of_its_roof_percent"] = roof.percent;
    result["nearest_roof"] = roof.bound;
    result["roof_from"] = evidence::to_string(roof.from);
  }
  return result;
}

json one_json(const Roofline& roofline) {
  json ridges = json::object(), flops_s = json::object(), pairs = json::array();
  const double memory = usable(roofline.ceilings.memory_bytes_s) ? roofline.ceilings.memory_bytes_s : 0;
  for (const auto& [math, rate] : roofline.ceilings.flops_s) {
    if (!usable(rate)) continue;
    flops_s[math] = rate;
    if (memory > 0) ridges[math] = rate / memory;
  }
  for (const RooflinePair& pair : roofline.pairs) {
    json variants = json::array();
    for (const RooflinePoint& point : pair.points) variants.push_back(point_json(pair, point));
    pairs.push_back({{"target", pair.target}, {"stale", pair.stale}, {"variants", std::move(variants)}});
  }
  json result{{"hardware", roofline.hardware},
              {"machine", roofline.machine},
              {"ridges_flop_per_byte", std::move(ridges)},
              {"pairs", std::move(pairs)}};
  if (memory > 0 || !flops_s.empty())
    result["ceilings"] = {{"memory_bytes_s", memory}, {"flops_s", std::move(flops_s)}, {"source", roofline.ceilings.source}};
  if (memory > 0 && roofline.ceilings.memory_from != evidence::CeilingFrom::measured)
    result["ceilings"]["memory_from"] = evidence::to_string(roofline.ceilings.memory_from);
  for (const auto& [math, from] : roofline.ceilings.flops_from)
    result["ceilings"]["flops_from"][math] = evidence::to_string(from);
  return result;
}

}  // namespace

bool RooflinePoint::crosses_memory() const {
  return cost.bytes_of == evidence::ByteKind::device_memory || cost.bytes_of == evidence::ByteKind::host_memory;
}
bool RooflinePoint::has_place() const {
  return crosses_memory() && usable(cost.flops) && usable(cost.bytes) && usable(intensity()) && usable(flops_s());
}
double RooflinePoint::intensity() const { return cost.flops / cost.bytes; }
double RooflinePoint::flops_s() const { return cost.flops / median_ms * 1e3; }
double RooflinePoint::bytes_s() const { return cost.bytes / median_ms * 1e3; }

std::string RooflinePair::swept_target() const {
  const std::size_t space = target.find(' ');
  return space == std::string::npos ? std::string{} : target.substr(0, space);
}

bool RooflinePair::is_drawn() const {
  const auto lesson = std::find_if(points.begin(), points.end(), [](const RooflinePoint& point) { return point.lesson; });
  return lesson != points.end() && lesson->has_place() && points.front().has_place();
}

std::size_t Roofline::drawn() const {
  return static_cast<std::size_t>(std::count_if(pairs.begin(), pairs.end(), [](const auto& pair) { return pair.is_drawn(); }));
}

std::string Roofline::title() const {
  const std::string chapter = pairs.empty() ? "" : pairs.front().target.substr(0, pairs.front().target.find(':'));
  const bool is_one = !chapter.empty() && std::all_of(pairs.begin(), pairs.end(), [&](const RooflinePair& pair) {
    return pair.target.starts_with(chapter + ":");
  });
  return is_one ? chapter_title(chapter) + " on " + hardware : hardware;
}

std::string roof_text(const RooflinePair& pair, const RooflinePoint& point) {
  const Roof roof = roof_of(point, pair.ceilings);
  return usable(roof.percent) ? fmt::format("{}{:.0f} % of {}", guess_mark(roof.from), roof.percent, roof.bound) : "";
}

std::vector<Roofline> rooflines(const std::vector<Expectations>& all, const Digests& present,
                                const std::vector<std::string>& chapters) {
  std::map<std::string, Roofline> by_hardware;
  for (const Expectations& file : all) {
    if (!chapters.empty() && std::find(chapters.begin(), chapters.end(), file.chapter) == chapters.end()) continue;
    for (const auto& [name, expected] : file.pairs) {
      RooflinePair pair = pair_of(file.chapter, name, expected);
      const auto digests = present.find(pair.target);
      pair.stale =
          digests != present.end() && std::ranges::find(digests->second, expected.source_digest) == digests->second.end();
      by_hardware[file.hardware].pairs.push_back(std::move(pair));
    }
  }
  std::vector<Roofline> result;
  for (auto& [hardware, roofline] : by_hardware) {
    roofline.hardware = hardware;
    gather_ceilings(roofline);
    result.push_back(std::move(roofline));
  }
  return result;
}

void take_floors(std::vector<Roofline>& rooflines, std::span<const evidence::PairResult> pairs) {
  std::map<std::pair<std::string, std::string>, const evidence::VariantResult*> results;
  for (const evidence::PairResult& pair : pairs)
    for (const evidence::VariantResult& variant : pair.variants) results[{label_in_run(pair), variant.name}] = &variant;
  for (Roofline& roofline : rooflines)
    for (RooflinePair& pair : roofline.pairs)
      for (RooflinePoint& point : pair.points)
        if (const auto found = results.find({pair.target, point.variant}); found != results.end())
          point.floor = found->second->floor;
}

std::vector<std::vector<std::string>> roofline_summary(const Roofline& roofline) {
  struct Lesson {
    double percent;
    std::string name;
  };
  std::map<std::string, std::vector<Lesson>> by_roof;
  for (const RooflinePair& pair : roofline.pairs)
    for (const RooflinePoint& point : pair.points) {
      const Roof roof = roof_of(point, pair.ceilings);
      if (point.lesson && usable(roof.percent) && roof.from != evidence::CeilingFrom::guess)
        by_roof[roof.bound].push_back({roof.percent, fmt::format("{} {}", pair.target, point.variant)});
    }
  std::vector<std::vector<std::string>> rows{
      {"roof", "lessons", fmt::format("at {:.0f} % or more", evidence::near_limit_percent), "median", "farthest below"}};
  for (auto& [roof, lessons] : by_roof) {
    std::ranges::sort(lessons, {}, &Lesson::percent);
    const auto near =
        std::ranges::count_if(lessons, [](const Lesson& lesson) { return lesson.percent >= evidence::near_limit_percent; });
    std::vector<double> percents;
    for (const Lesson& lesson : lessons) percents.push_back(lesson.percent);
    rows.push_back({roof, std::to_string(lessons.size()), std::to_string(near), base::significant(base::median(percents)) + " %",
                    fmt::format("{} ({} %)", lessons.front().name, base::significant(lessons.front().percent))});
  }
  return rows;
}

std::vector<std::vector<std::string>> roofline_rows(const Roofline& roofline) {
  std::vector<std::vector<std::string>> rows{
      {"pair", "variant", "median", "FLOP/byte", "compute rate", "bandwidth", "of its roof", "nearest roof"}};
  for (const RooflinePair& pair : roofline.pairs)
    for (const RooflinePoint& point : pair.points) rows.push_back(row_of(pair, point));
  return rows;
}

std::string roofline_json(const std::vector<Roofline>& rooflines) {
  json all = json::array();
  for (const Roofline& roofline : rooflines) all.push_back(one_json(roofline));
  return evidence::json_text({{"schema_version", evidence::schema_version}, {"rooflines", std::move(all)}}, 2) + '\n';
}

std::string ceilings_text(const ResultCeilings& ceilings) {
  std::vector<std::string> parts;
  if (usable(ceilings.memory_bytes_s))
    parts.push_back(fmt::format("memory {}{}", guess_mark(ceilings.memory_from), base::human_rate(ceilings.memory_bytes_s, "B")));
  for (const auto& [math, flops_s] : ceilings.flops_s)
    if (usable(flops_s))
      parts.push_back(
          fmt::format("{} {}{}", math, guess_mark(evidence::source_of_flops(ceilings, math)), base::human_rate(flops_s, "FLOP")));
  if (parts.empty()) return "no ceilings of this machine are known";
  return fmt::format("{} ({})", base::join(parts, ", "), ceilings.source);
}

std::string ridges_text(const ResultCeilings& ceilings) {
  std::vector<std::string> parts;
  if (usable(ceilings.memory_bytes_s))
    for (const auto& [math, flops_s] : ceilings.flops_s)
      if (usable(flops_s)) parts.push_back(fmt::format("{} {}", math, base::significant(flops_s / ceilings.memory_bytes_s)));
  if (parts.empty()) return {};
  return fmt::format("{} FLOP/byte; memory limits below, arithmetic above", base::join(parts, ", "));
}

std::string left_out_text(const Roofline& roofline) {
  const std::size_t left_out = roofline.pairs.size() - roofline.drawn();
  if (left_out == 0) return {};
  return fmt::format("{} without FLOPs per byte of memory {} left out of the picture", base::plural(left_out, "pair"),
                     left_out == 1 ? "is" : "are");
}

}  // namespace aisp::report
