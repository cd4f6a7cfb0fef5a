// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/math/statistics.hpp"
#include "base/text.hpp"
#include "evidence/range.hpp"
#include "report/html/parts.hpp"
#include "report/html/text.hpp"
#include "report/numbers.hpp"
#include "report/pictures/bar_picture.hpp"
#include "report/pictures/plot.hpp"

namespace aisp::report::html {
namespace {

using evidence::GpuState;
using evidence::PairResult;
using evidence::VariantResult;
using evidence::VariantRole;

// Units of the pictures; the page stretches them.
constexpr double width = 1000, strip_height = 40, dots_top = 5, chart_height = 60;

// The samples to draw, the stopwatch's own time taken out, with the round of each.
struct SampleStrip {
  std::vector<double> times_ms;
  std::vector<int> rounds;
  std::size_t undrawable = 0;
};

SampleStrip samples_of(const evidence::Timing& timing) {
  SampleStrip samples;
  for (std::size_t i = 0; i < timing.raw_times_ms.size(); ++i) {
    const double time_ms = timing.raw_times_ms[i] - timing.offset_ms;
    if (!std::isfinite(time_ms)) {
      ++samples.undrawable;
      continue;
    }
    samples.times_ms.push_back(time_ms);
    samples.rounds.push_back(i < timing.rounds.size() ? timing.rounds[i] : static_cast<int>(i));
  }
  return samples;
}

std::string svg(std::string_view css_class, double height, std::string_view label, const std::string& content) {
  return fmt::format(
      "<svg class=\"{}\" viewBox=\"-8 0 {} {}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">{}</svg>", css_class,
      width + 16, height, escaped(label), content);
}

std::string upright(std::string_view css_class, double x) {
  return fmt::format("<path class=\"{}\" d=\"M{:.0f} 0V{}\"/>", css_class, x, strip_height);
}

// The SM clocks of a pair's rounds in few classes, slowest first; one where the clock stood still or is not known.
class Clocks {
 public:
  explicit Clocks(const PairResult& pair) : states_{pair.gpu_states} {
    for (const GpuState& state : states_) {
      if (state.sm_clock_mhz <= 0) continue;
      slowest_ = slowest_ == 0 ? state.sm_clock_mhz : std::min(slowest_, state.sm_clock_mhz);
      fastest_ = std::max(fastest_, state.sm_clock_mhz);
    }
    if (fastest_ - slowest_ > fastest_ / 50) classes_ = 4;
  }

  int classes() const { return classes_; }
  int class_of(int round) const {
    if (classes_ == 1 || round < 0 || static_cast<std::size_t>(round) >= states_.size()) return classes_ - 1;
    const int clock = states_[static_cast<std::size_t>(round)].sm_clock_mhz;
    return std::clamp((clock - slowest_) * classes_ / (fastest_ - slowest_), 0, classes_ - 1);
  }
  std::string legend() const {
    if (classes_ == 1) return {};
    std::string text;
    for (int i = 0; i < classes_; ++i)
      text += fmt::format(
          "<span class=\"key\"><svg viewBox=\"0 0 10 10\" aria-hidden=\"true\"><path class=\"dots clock{}\" d=\"M5 "
          "5h0\"/></svg>{} to {} MHz</span>",
          i, slowest_ + (fastest_ - slowest_) * i / classes_, slowest_ + (fastest_ - slowest_) * (i + 1) / classes_);
    return tag("p", "SM clock: " + text, "class=\"note keys\"");
  }

 private:
  const std::vector<GpuState>& states_;
  int slowest_ = 0, fastest_ = 0, classes_ = 1;
};

// Two digits of base 36 for each place, which compress better than numbers with blanks between them.
std::string digits(double place) {
  constexpr std::string_view all = "0123456789abcdefghijklmnopqrstuvwxyz";
  const auto value = static_cast<std::size_t>(std::lround(std::clamp(place, 0.0, 36.0 * 36 - 1)));
  return {all[value / 36], all[value % 36]};
}

// First round on top, so that a drift shows as a slope. The page's script draws them: places of all samples, and where it is no
// matter of course the height and the clock's class of each.
std::string dots(const SampleStrip& samples, const Scale& range, const Clocks& clocks) {
  const auto [first, last] = std::minmax_element(samples.rounds.begin(), samples.rounds.end());
  const Scale rounds{false, static_cast<double>(*first), static_cast<double>(*last), dots_top, strip_height - dots_top};
  std::string places, heights, classes;
  bool one_a_round = true;
  for (std::size_t i = 0; i < samples.times_ms.size(); ++i) {
    places += digits(range.at(samples.times_ms[i]));
    heights += digits(rounds.at(samples.rounds[i]));
    classes += static_cast<char>('0' + clocks.class_of(samples.rounds[i]));
    one_a_round = one_a_round && samples.rounds[i] == samples.rounds.front() + static_cast<int>(i);
  }
  return fmt::format("<g data-x=\"{}\"{}{}></g>", places, one_a_round ? "" : fmt::format(" data-y=\"{}\"", heights),
                     clocks.classes() > 1 ? fmt::format(" data-clock=\"{}\"", classes) : "");
}

// By how much, of its median, a variant's samples differ from it, without the few that are far away.
double spread_of(const VariantResult& variant) {
  const SampleStrip samples = samples_of(*variant.timing);
  const evidence::Summary& s = variant.timing->summary;
  if (samples.times_ms.empty() || !(s.median > 0) || !std::isfinite(s.median)) return 0;
  std::vector<double> times = samples.times_ms;
  std::sort(times.begin(), times.end());
  const double high = times[(times.size() - 1) * 95 / 100], low = times.front();
  const double spread = std::max(high - s.median, s.median - low) / s.median;
  return std::isfinite(spread) ? std::min(spread, 1.0) : 1.0;
}

// One for all variants of a pair, so that their spreads can be compared by eye.
double widest_spread(const PairResult& pair) {
  double widest = 0.002;
  for (const VariantResult& variant : pair.variants)
    if (variant.timing) widest = std::max(widest, spread_of(variant) * 1.25);
  return widest;
}

// Nothing where there are too few samples for one.
std::optional<evidence::Range> interval_of(const VariantResult& variant, const SampleStrip& samples) {
  if (samples.undrawable > 0 || !base::median_ranks(samples.times_ms.size())) return std::nullopt;
  return evidence::time_range(variant);
}

std::string strip(const PairResult& pair, const VariantResult& variant, double spread, const Clocks& clocks) {
  const SampleStrip samples = samples_of(*variant.timing);
  if (samples.times_ms.empty()) return {};
  const double median = variant.timing->summary.median;
  const Scale range{false, median * (1 - spread), median * (1 + spread), 0, width};
  const std::optional<evidence::Range> interval = interval_of(variant, samples);
  std::string drawing;
  if (interval) {
    const double from = range.at(interval->low), to = range.at(interval->high);
    drawing += fmt::format("<rect class=\"interval\" x=\"{:.0f}\" y=\"0\" width=\"{:.0f}\" height=\"{}\"/>", from,
                           std::max(to - from, 2.0), strip_height);
  }
  drawing += dots(samples, range, clocks);
  if (std::isfinite(median)) drawing += upright("median", range.at(median));
  const std::string words = interval ? fmt::format("median {}, interval {} to {}", time_text(median), time_text(interval->low),
                                                   time_text(interval->high))
                                     : "median " + time_text(median);
  const std::string role = variant.name == pair.lesson ? "lesson" : std::string{to_string(variant.role)};
  std::string label = tag("b", escaped(variant.name)) + fmt::format(" <span class=\"role\">{}</span>", role) +
                      fmt::format("<span class=\"words\">{}</span>", words);
  std::string scale = tag("span", time_text(range.low())) +
                      tag("span", base::plural(samples.times_ms.size(), "sample") +
                                      (samples.undrawable > 0 ? fmt::format(", {} not finite", samples.undrawable) : "")) +
                      tag("span", time_text(range.high()));
  return tag("div",
             tag("div", label, "class=\"label\"") +
                 svg("strip", strip_height, fmt::format("samples of {}: {}", variant.name, words), drawing) +
                 tag("div", scale, "class=\"scale\""),
             fmt::format("class=\"sample {}\"", role)) +
         "\n";
}

std::string line_chart(const std::vector<double>& values, std::string_view css_class, const std::string& name,
                       const std::string& unit) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  // From zero, so that a small ripple looks small.
  const Scale range{false, 0, *most * 1.05, chart_height, 0};
  std::string heights;
  for (const double value : values) heights += digits(10 * range.at(value));
  const std::string words =
      *least == *most ? fmt::format("{:.0f} {}", *most, unit) : fmt::format("{:.0f} to {:.0f} {}", *least, *most, unit);
  return tag("div",
             tag("div", tag("b", name) + fmt::format("<span class=\"words\">{}</span>", words), "class=\"label\"") +
                 svg("chart", chart_height, name + ": " + words,
                     fmt::format("<polyline class=\"{}\" data-tenths=\"{}\"/>", css_class, heights)) +
                 tag("div", tag("span", "round 1") + tag("span", fmt::format("{}", values.size())), "class=\"scale\""),
             "class=\"state\"") +
         "\n";
}

std::string clock_limits(const PairResult& pair, const HtmlReport& report) {
  std::map<std::string, std::size_t> rounds;
  if (report.throttle_text)
    for (const GpuState& state : pair.gpu_states)
      if (std::string words = report.throttle_text(state.throttle_reasons); !words.empty()) ++rounds[words];
  if (rounds.empty()) return tag("p", "Nothing limited the clock in any round.", "class=\"note\"");
  std::string text;
  for (const auto& [words, count] : rounds)
    text += fmt::format("{}The clock was limited by {} in {} of {}.", text.empty() ? "" : " ", escaped(words), count,
                        base::plural(pair.gpu_states.size(), "round"));
  return tag("p", text, "class=\"note\"");
}

std::string css_class_of(const evidence::PairResult& pair, const VariantResult& variant) {
  if (variant.role == VariantRole::control) return "unclear";
  if (variant.role != VariantRole::optimized) return std::string{to_string(variant.role)};
  return variant.name == pair.lesson ? "best" : "optimized";
}

Bar bar_of(const evidence::PairResult& pair, const VariantResult& variant) {
  Bar bar{.name = variant.name, .detail = standing_text(pair, variant), .css_class = css_class_of(pair, variant)};
  if (variant.role == VariantRole::baseline) {
    bar.value = 1;
    bar.text = "1x, " + median_text(variant);
    return bar;
  }
  const evidence::Speedup& speedup = *variant.speedup;
  bar.value = speedup.value;
  bar.low = speedup.low;
  bar.high = speedup.high;
  bar.text = base::significant(speedup.value) + "x";
  if (variant.gain && variant.gain->over != pair.variants.front().name) bar.text += " (" + gain_text(pair, variant) + ")";
  return bar;
}

// Returns the baseline, the steps in their order with the gain of each, then controls and libraries; those that may be claimed.
BarChart ladder_chart(const evidence::PairResult& pair) {
  BarChart chart{.title = "speedups of the variants of " + pair.target, .reference = 1, .tick_unit = "x", .value_px = 210};
  BarGroup group;
  double greatest = 1;
  for (const VariantResult& variant : pair.variants) {
    const bool is_baseline = variant.role == VariantRole::baseline && variant.timing && pair.status == evidence::Status::passed;
    if (!is_baseline && claimable(pair, variant) == nullptr) continue;
    group.bars.push_back(bar_of(pair, variant));
    greatest = std::max(greatest, group.bars.back().value);
  }
  chart.logarithmic = greatest > most_on_linear_scale;
  chart.groups.push_back(std::move(group));
  return chart;
}

}  // namespace

std::string ladder(const PairResult& pair) {
  const BarChart chart = ladder_chart(pair);
  if (chart.empty() || chart.groups.front().bars.size() < 2) return {};
  return tag("h4", "Step by step") + figure([&](double picture_width) { return bar_picture(chart, picture_width); });
}

std::string sample_strips(const PairResult& pair) {
  const Clocks clocks{pair};
  const double spread = widest_spread(pair);
  std::string strips;
  for (const VariantResult& variant : pair.variants)
    if (variant.timing) strips += strip(pair, variant, spread, clocks);
  if (strips.empty()) return {};
  return tag("h4", "Samples") +
         tag("p",
             fmt::format(
                 "Each dot is one sample; the first round is on top. All strips have one scale, {:.2g}\u00a0% to both sides of "
                 "each "
                 "variant's median, and what lies beyond stands at the edge. The line is the median, the shade its 95\u00a0% "
                 "interval. The stopwatch's own time is taken out.",
                 100 * spread),
             "class=\"note\"") +
         clocks.legend() + tag("div", strips, "class=\"samples\"");
}

std::string gpu_states(const PairResult& pair, const HtmlReport& report) {
  std::vector<double> clocks, watts;
  for (const GpuState& state : pair.gpu_states) {
    clocks.push_back(state.sm_clock_mhz);
    watts.push_back(std::isfinite(state.power_w) ? std::clamp(state.power_w, 0.0, 1e6) : 0);
  }
  const auto known = [](const std::vector<double>& values) {
    return std::any_of(values.begin(), values.end(), [](double v) { return v > 0; });
  };
  std::string charts;
  if (known(clocks)) charts += line_chart(clocks, "clock", "SM clock", "MHz");
  if (known(watts)) charts += line_chart(watts, "power", "Power", "W");
  if (charts.empty()) return {};
  return tag("h4", "Clock and power, round by round") + tag("div", charts, "class=\"states\"") + clock_limits(pair, report) +
         tag("p",
             "NVML reports power as an average over its own window, which is longer than a sample and covers the rests between "
             "samples: a chip can be at its power cap while the average is far below it.",
             "class=\"note\"");
}

}  // namespace aisp::report::html
