// SPDX-License-Identifier: Apache-2.0
#include "report/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/text.hpp"
#include "evidence/quantities.hpp"

namespace aisp::report {

std::string chapter_title(std::string_view chapter) {
  const bool is_number = chapter.size() == 4 && chapter.starts_with("ch") && chapter[2] >= '0' && chapter[2] <= '9' &&
                         chapter[3] >= '0' && chapter[3] <= '9';
  return is_number ? fmt::format("Chapter {}", (chapter[2] - '0') * 10 + (chapter[3] - '0')) : std::string{chapter};
}

std::string speedup_text(const evidence::Speedup& speedup) {
  return fmt::format("{}x [{}, {}]", base::significant(speedup.value), base::significant(speedup.low),
                     base::significant(speedup.high));
}

std::string gain_text(const evidence::PairResult& pair, const evidence::VariantResult& variant) {
  if (claimable(pair, variant) == nullptr || !variant.gain) return {};
  return fmt::format("{}x over {}", base::significant(variant.gain->ratio.value), variant.gain->over);
}

std::string share_text(const evidence::PairResult& pair, const evidence::VariantResult& variant) {
  const evidence::LibraryShare* share = claimable_share(pair, variant);
  return share == nullptr ? "" : fmt::format("{:.0f} % of {}", share->percent, share->library);
}

const evidence::VariantResult* headline(const evidence::PairResult& pair) {
  const evidence::VariantResult* lesson = evidence::lesson_variant(pair);
  return lesson != nullptr ? lesson : evidence::best_variant(pair);
}

std::string not_run_text(const evidence::VariantResult& variant) {
  return variant.accuracy || variant.timing ? "not run before" : "not run";
}

std::string standing_text(const evidence::PairResult& pair, const evidence::VariantResult& variant) {
  std::vector<std::string> words;
  if (variant.role != evidence::VariantRole::optimized) words.emplace_back(to_string(variant.role));
  if (!variant.computes_output) words.emplace_back("not verified");
  if (variant.not_run) words.push_back(not_run_text(variant));
  if (&variant == evidence::lesson_variant(pair)) words.emplace_back("lesson");
  if (claimable(pair, variant) != nullptr && variant.name == pair.best) words.emplace_back("best");
  return base::join(words, ", ");
}

std::string median_text(const evidence::VariantResult& variant) {
  return variant.timing ? base::display_ms(variant.timing->summary.median) : "-";
}

std::string_view guess_mark(evidence::CeilingFrom from) { return from == evidence::CeilingFrom::guess ? "~" : ""; }

std::string floor_text(const evidence::Floor& floor) {
  const std::string_view mark = guess_mark(floor.ceiling_from);
  return fmt::format("{}{:.0f} % of {} ({}{})", mark, floor.percent, floor.limiter, mark, floor.ceiling);
}

static std::string workload_text(const evidence::PairResult& pair) {
  std::string text = "scale " + base::significant(pair.scale);
  if (const std::string sizes = sizes_text(pair); !sizes.empty()) text += ", sizes " + sizes + (pair.sizes_set ? " (set)" : "");
  return text;
}

static std::string pace_text(const evidence::PairResult& pair) {
  if (pair.sampling_s <= 0 || pair.duty_percent <= 0) return {};
  std::string text =
      fmt::format(" Samples fill {} % of {}", base::significant(pair.duty_percent, 2), base::human_duration(pair.sampling_s));
  const evidence::VariantResult* first = pair.variants.empty() ? nullptr : &pair.variants.front();
  if (first != nullptr && first->timing && first->timing->sm_clock_mhz)
    text += fmt::format(", SM clock {:.0f} MHz (median)", *first->timing->sm_clock_mhz);
  return text + '.';
}

std::string timed_text(const evidence::PairResult& pair) {
  if (pair.stopped_because == evidence::StopReason::none) return {};
  const std::string clock = pair.device == evidence::Device::host
                                ? "the host's clock"
                                : fmt::format("{} from a {} start, {} cache", to_string(pair.timing_mode), to_string(pair.start),
                                              to_string(pair.cache));
  return fmt::format("Timed by {}, judged by {}; stopped: {}. Seed {}, {}.{}", clock, pair.judged_by,
                     to_string(pair.stopped_because), pair.seed, workload_text(pair), pace_text(pair));
}

std::string metric_number(const evidence::RecordedMetric& metric) {
  constexpr std::array prefixes = {"", "k", "M", "G", "T"};
  double value = metric.value;
  std::size_t prefix = 0;
  if (metric.unit.ends_with("/s"))
    for (; std::fabs(value) >= 999.5 && prefix + 1 < prefixes.size(); ++prefix) value /= 1000;
  // Counts stay counts: 8 splits, not 8.00.
  const bool is_whole = prefix == 0 && value == std::round(value) && std::fabs(value) < 1e15;
  return (is_whole ? fmt::format("{:.0f}", value) : base::significant(value)) + prefixes[prefix];
}

static std::string host_text(const evidence::Recorded& recorded) {
  if (recorded.cpus_usable <= 0) return recorded.cpu;
  return fmt::format("{}, {}, {}{}", recorded.cpu, base::plural(static_cast<std::size_t>(recorded.cpus_usable), "usable CPU"),
                     base::plural(static_cast<std::size_t>(std::max(0, recorded.numa_nodes)), "NUMA node"),
                     recorded.hypervisor.empty() ? "" : ", hypervisor " + recorded.hypervisor);
}

std::string machine_text(const evidence::Recorded& recorded) {
  if (recorded.gpu.empty()) return host_text(recorded);
  const std::string limit =
      recorded.power_limit_w > 0 ? fmt::format(", power limit {} W", base::significant(recorded.power_limit_w)) : "";
  return fmt::format("{}, driver {}, CUDA {}{}", recorded.gpu, recorded.driver, recorded.cuda, limit);
}

std::string joules_text(double joules) {
  if (joules >= 0.1) return base::significant(joules) + " J";
  if (joules >= 1e-4) return base::significant(joules * 1e3) + " mJ";
  return base::significant(joules * 1e6) + " uJ";
}

std::string energy_ratio_text(const evidence::Energy& energy) {
  if (!energy.ratio) return "-";
  return fmt::format("{}x [{}, {}]", base::significant(energy.ratio->value), base::significant(energy.ratio->low),
                     base::significant(energy.ratio->high));
}

namespace {

using base::display_ms;
using evidence::VariantResult;

std::string bytes_text(std::uint64_t bytes) { return bytes == 0 ? "-" : base::human_bytes(static_cast<double>(bytes)); }

std::string number_text(evidence::Format format, double value) {
  using evidence::Format;
  switch (format) {
    case Format::coefficient: return fmt::format("{:.2f}", value);
    case Format::count: return fmt::format("{:.0f}", value);
    case Format::milliseconds: return display_ms(value);
    case Format::bytes: return base::human_bytes(value);
    case Format::joules: return joules_text(value);
    case Format::watts: return fmt::format("{:.0f} W", value);
    case Format::percent: return fmt::format("{:.0f} %", value);
    case Format::ratio: return base::significant(value) + "x";
    case Format::error: return value > 0 ? fmt::format("{:.2e}", value) : "0";
    case Format::flop_rate: return base::human_rate(value, "FLOP");
    case Format::byte_rate: return base::human_rate(value, "B");
    case Format::number: break;
  }
  return base::significant(value);
}

std::string cell_text(const evidence::Quantity& quantity, const evidence::PairResult& pair, const VariantResult& variant) {
  if (quantity.words != nullptr) return quantity.words(pair, variant);
  const std::optional<evidence::Range> range = quantity.get(pair, variant);
  if (!range) return {};
  const std::string text = number_text(quantity.format, range->value);
  if (!(range->low < range->high)) return text;
  return fmt::format("{} [{}, {}]", text, number_text(quantity.format, range->low), number_text(quantity.format, range->high));
}

}  // namespace

Rows quantity_rows(const evidence::PairResult& pair, std::string_view group) {
  Rows rows{{"variant"}};
  for (const evidence::Quantity& quantity : evidence::quantities())
    if (quantity.group == group) rows.front().emplace_back(quantity.title);
  for (const VariantResult& variant : pair.variants) {
    std::vector<std::string> cells{variant.name};
    for (const evidence::Quantity& quantity : evidence::quantities())
      if (quantity.group == group) cells.push_back(cell_text(quantity, pair, variant));
    if (std::any_of(cells.begin() + 1, cells.end(), [](const std::string& cell) { return !cell.empty(); }))
      rows.push_back(std::move(cells));
  }
  return rows;
}

Rows stage_rows(const evidence::PairResult& pair) {
  Rows rows{{"stage", "took", "limit", "finished"}};
  for (const evidence::StageRecord& stage : pair.watchdog)
    rows.push_back({std::string{to_string(stage.stage)}, base::human_duration(stage.elapsed_s),
                    base::human_duration(stage.limit_s), stage.finished ? "yes" : "no"});
  return rows;
}

Rows kernel_rows(const evidence::PairResult& pair) {
  Rows rows{{"variant", "kernel", "registers a thread", "local memory a thread"}};
  for (const VariantResult& variant : pair.variants)
    for (const evidence::KernelResources& kernel : variant.kernels)
      rows.push_back({variant.name, kernel.name, std::to_string(kernel.registers), bytes_text(kernel.local_bytes)});
  return rows;
}

}  // namespace aisp::report
