// SPDX-License-Identifier: Apache-2.0
#include "report/pictures/chapter_pictures.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <regex>

#include "base/error.hpp"
#include "base/text.hpp"
#include "report/numbers.hpp"
#include "report/pictures/bar_picture.hpp"
#include "report/pictures/intensity_picture.hpp"
#include "report/pictures/roofline.hpp"
#include "report/pictures/sweep_picture.hpp"
#include "report/recorded_speedup.hpp"

namespace aisp::report {
namespace {

using evidence::Expectations;
using evidence::ExpectedPair;
using evidence::VariantRole;

// As wide as a page of a README shows without shrinking.
constexpr double picture_px = 880;

// Pictures that somebody else draws, each with the reason behind it.
constexpr std::array<std::string_view, 3> other_hands = {
    "drawn by hand: ", "drawn by scripts/draw-diagrams: ", "drawn by aisp peak --levels: "};

[[noreturn]] void refuse(const std::string& place, const std::string& what) {
  throw base::Error{base::Exit::usage, place + ": " + what};
}

// A pair as the executable knows it and as it was recorded.
struct Shown {
  const KnownPair& known;
  const ExpectedPair& recorded;
};

std::vector<Shown> shown_pairs(const PictureMark& mark, const std::vector<KnownPair>& chapter_pairs, const Expectations& recorded,
                               const std::string& place) {
  std::vector<Shown> shown;
  const auto add = [&](const KnownPair& known) {
    const auto found = recorded.pairs.find(known.name);
    if (found != recorded.pairs.end()) shown.push_back({known, found->second});
    return found != recorded.pairs.end();
  };
  for (const std::string& name : mark.pairs) {
    const auto known = std::ranges::find(chapter_pairs, name, &KnownPair::name);
    if (known == chapter_pairs.end() || !add(*known))
      refuse(place, fmt::format("{}: {}:{} is not recorded on {}", mark.file, recorded.chapter, name, mark.hardware));
  }
  if (mark.pairs.empty())
    for (const KnownPair& known : chapter_pairs) add(known);
  return shown;
}

BarChart empty_chart(const std::string& title, const std::string& what, const std::vector<Shown>& shown) {
  BarChart chart{.title = title, .notes = {what}, .heading = true, .value_px = 150};
  std::string machine;
  for (const Shown& pair : shown)
    if (const std::string text = machine_text(pair.recorded.recorded); machine.empty()) machine = text;
  if (!machine.empty()) chart.notes.push_back(machine);
  return chart;
}

std::string css_class_of(const Shown& pair, const std::string& name, VariantRole role) {
  if (role == VariantRole::control) return "unclear";
  if (role == VariantRole::library) return "library";
  return name == pair.known.lesson ? "best" : "optimized";
}

Bar speedup_bar(const Shown& pair, const std::string& name, const std::string& gains_over) {
  const evidence::ExpectedVariant& variant = pair.recorded.variants.at(name);
  const RecordedSpeedup shown = recorded_speedup(variant);
  const evidence::Range range = shown.is_steady() ? shown.range : seen_range(variant);
  Bar bar{.name = name,
          .value = variant.speedup,
          .low = range.low,
          .high = range.high,
          .text = shown.is_steady() ? base::significant(range.value) + "x"
                                    : fmt::format("{} to {}x", base::significant(range.low), base::significant(range.high)),
          .css_class = css_class_of(pair, name, variant.role)};
  const std::string gain =
      gains_over.empty() || gains_over == pair.recorded.baseline ? "" : recorded_gain(pair.recorded, name, gains_over);
  if (!gain.empty()) bar.text += fmt::format(" ({} over {})", gain, gains_over);
  return bar;
}

// The baseline, the steps in their order, then controls and libraries.
BarGroup speedups_of(const Shown& pair) {
  BarGroup group{.name = pair.known.name};
  const std::string judged = pair.recorded.judged_by == evidence::time_metric ? "" : " of " + pair.recorded.judged_by;
  group.bars.push_back({.name = pair.recorded.baseline,
                        .value = 1,
                        .text = judged.empty() ? "1x, " + base::display_ms(pair.recorded.baseline_median_ms) : "1x" + judged,
                        .css_class = "baseline"});
  for (const KnownPair::Step& step : pair.known.steps)
    if (pair.recorded.variants.contains(step.name)) group.bars.push_back(speedup_bar(pair, step.name, step.gains_over));
  for (const VariantRole role : {VariantRole::control, VariantRole::library})
    for (const auto& [name, variant] : pair.recorded.variants)
      if (variant.role == role) group.bars.push_back(speedup_bar(pair, name, ""));
  return group;
}

BarChart speedups_chart(const std::string& title, const std::vector<Shown>& shown) {
  BarChart chart = empty_chart(
      title, "Speedup over the baseline, with the spread of runs; dark: the lesson, violet: a library, grey: a control", shown);
  chart.reference = 1;
  chart.tick_unit = "x";
  chart.value_px = 300;
  double greatest = 1;
  for (const Shown& pair : shown) {
    chart.groups.push_back(speedups_of(pair));
    for (const Bar& bar : chart.groups.back().bars) greatest = std::max(greatest, bar.value);
  }
  chart.logarithmic = greatest > most_on_linear_scale;
  return chart;
}

Bar share_bar(const Shown& pair, const std::string& name, const std::string& library, const std::string& css_class) {
  const double percent = 100 * evidence::speed_over(pair.recorded, name, library).value_or(0);
  return {.name = name, .value = percent, .text = fmt::format("{:.0f} %", percent), .css_class = css_class};
}

BarChart library_chart(const std::string& title, const std::vector<Shown>& shown) {
  BarChart chart = empty_chart(
      title, "Speed in percent of the library, timed in the same rounds; orange: the baseline, dark: the lesson", shown);
  chart.reference = 100;
  chart.most = 200;  // what is many times as fast needs no scale, and those near the library do
  chart.tick_unit = " %";
  for (const Shown& pair : shown) {
    const std::string library = fastest_library(pair.known, pair.recorded, pair.known.lesson);
    if (library.empty()) continue;
    BarGroup group{.name = fmt::format("{} (100 %: {})", pair.known.name, library)};
    group.bars.push_back(share_bar(pair, pair.recorded.baseline, library, "baseline"));
    for (const KnownPair::Step& step : pair.known.steps)
      if (const auto found = pair.recorded.variants.find(step.name); found != pair.recorded.variants.end())
        group.bars.push_back(share_bar(pair, step.name, library, css_class_of(pair, step.name, found->second.role)));
    chart.groups.push_back(std::move(group));
  }
  return chart;
}

Roofline roofline_of(const PictureMark& mark, const std::string& chapter, const std::vector<KnownPair>& chapter_pairs,
                     const std::vector<Expectations>& all) {
  Roofline found;
  for (Roofline& roofline : rooflines(all, chapter_pairs, {chapter}))
    if (roofline.hardware == mark.hardware) found = std::move(roofline);
  if (!mark.pairs.empty())
    std::erase_if(found.pairs, [&](const RooflinePair& pair) {
      return std::ranges::find(mark.pairs, pair.target.substr(chapter.size() + 1)) == mark.pairs.end();
    });
  return found;
}

void add_counted_bytes(Roofline& roofline, const std::vector<evidence::Counted>& all) {
  for (RooflinePair& pair : roofline.pairs) {
    const auto counted = std::ranges::find_if(
        all, [&](const evidence::Counted& each) { return each.hardware == roofline.hardware && each.target == pair.target; });
    if (counted == all.end()) continue;
    for (RooflinePoint& point : pair.points) {
      const auto variant = std::ranges::find(counted->variants, point.variant, &evidence::CountedVariant::name);
      if (variant != counted->variants.end()) point.counted_bytes = evidence::dram_bytes(variant->counters).value_or(0);
    }
  }
}

std::string drawn(const BarChart& chart, const PictureMark& mark, const std::string& place) {
  if (chart.empty()) refuse(place, fmt::format("{}: nothing of this kind is recorded on {}", mark.file, mark.hardware));
  return svg::alone(bar_picture(chart, picture_px));
}

std::string picture_of_sweep(const PictureMark& mark, const std::string& chapter, const std::vector<evidence::Sweep>& sweeps,
                             const std::string& place) {
  if (mark.pairs.size() != 1)
    refuse(place, fmt::format("{}: a picture of a sweep is of one pair; name it behind the hardware", mark.file));
  const std::string target = chapter + ":" + mark.pairs.front();
  const auto found = std::ranges::find_if(
      sweeps, [&](const evidence::Sweep& sweep) { return sweep.hardware == mark.hardware && sweep.target == target; });
  if (found == sweeps.end())
    refuse(place, fmt::format("{}: no sweep of {} is recorded on {}; aisp run --targets {} --sweep --update-expectations records "
                              "one",
                              mark.file, target, mark.hardware, target));
  const SweepQuantity quantity = mark.kind == PictureKind::sweep ? SweepQuantity::rate : SweepQuantity::speedup;
  std::string picture = sweep_svg(*found, quantity, picture_px);
  if (picture.empty()) refuse(place, fmt::format("{}: the sweep of {} has nothing of this kind", mark.file, target));
  return picture;
}

}  // namespace

std::vector<PictureMark> picture_marks(const std::string& page, const std::string& place) {
  static const std::regex link{R"(\]\(([^()\s/:]+\.svg)\)(<!-- picture:\s+([^>]*?)\s+-->)?)"};
  std::vector<PictureMark> marks;
  for (std::sregex_iterator match{page.begin(), page.end(), link}, end; match != end; ++match) {
    PictureMark mark{.file = (*match)[1]};
    if (!(*match)[2].matched)
      refuse(place, mark.file + ": no comment behind it says what it shows, as in <!-- picture: speedups h200 -->");
    static const std::regex blanks{R"(\s+)"};
    const std::string what = std::regex_replace((*match)[3].str(), blanks, " ");
    if (std::ranges::none_of(other_hands, [&](std::string_view hand) { return what.starts_with(hand); })) {
      std::vector<std::string> words = base::split(what, ' ');
      mark.kind = base::find_word<PictureKind>(words[0]);
      if (words.size() < 2 || !mark.kind)
        refuse(place, fmt::format("{}: '{}' is no kind of picture and hardware; {}, or drawn by hand: and why", mark.file, what,
                                  fmt::join(base::all_words<PictureKind>(), ", ")));
      mark.hardware = words[1];
      mark.pairs.assign(words.begin() + 2, words.end());
    }
    marks.push_back(std::move(mark));
  }
  return marks;
}

std::string chapter_picture(const PictureMark& mark, const std::string& chapter, const std::vector<KnownPair>& chapter_pairs,
                            const Records& records, const std::string& place) {
  if (mark.kind == PictureKind::sweep || mark.kind == PictureKind::sweep_speedups)
    return picture_of_sweep(mark, chapter, records.sweeps, place);
  const std::vector<Expectations>& all = records.expectations;
  const auto recorded = std::ranges::find_if(all, [&](const Expectations& expectations) {
    return expectations.hardware == mark.hardware && expectations.chapter == chapter;
  });
  if (recorded == all.end()) refuse(place, fmt::format("{}: nothing of {} is recorded on {}", mark.file, chapter, mark.hardware));
  const std::vector<Shown> shown = shown_pairs(mark, chapter_pairs, *recorded, place);
  const std::string title = fmt::format("{} on {}", chapter_title(chapter), mark.hardware);
  if (mark.kind == PictureKind::speedups) return drawn(speedups_chart(title, shown), mark, place);
  if (mark.kind == PictureKind::library) return drawn(library_chart(title, shown), mark, place);
  Roofline roofline = roofline_of(mark, chapter, chapter_pairs, all);
  add_counted_bytes(roofline, records.counted);
  if (roofline.drawn() == 0) refuse(place, fmt::format("{}: no pair declares FLOPs and bytes of memory", mark.file));
  return mark.kind == PictureKind::roofline ? roofline_svg(roofline) : intensity_svg(roofline);
}

}  // namespace aisp::report
