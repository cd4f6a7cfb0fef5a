// SPDX-License-Identifier: Apache-2.0
#include "report/console.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/system/terminal.hpp"
#include "base/text.hpp"
#include "evidence/profile/profile_difference.hpp"
#include "evidence/quantities.hpp"
#include "report/numbers.hpp"
#include "report/run_end.hpp"
#include "report/warnings.hpp"

namespace aisp::report {
namespace {

using base::Style;

// Two lines' worth of names would hide what is said of them.
std::string short_list(const std::vector<const evidence::PairResult*>& pairs) {
  const std::string first = label_in_run(*pairs.front());
  return pairs.size() == 1 ? first : fmt::format("{} and {} more", first, pairs.size() - 1);
}

std::string_view words(evidence::Verdict verdict) {
  return verdict == evidence::Verdict::cannot_tell ? "cannot tell" : to_string(verdict);
}

constexpr int widest_verdict = 11;  // "cannot tell"

Style style_of(evidence::Verdict verdict) {
  return verdict == evidence::Verdict::faster ? Style::green : verdict == evidence::Verdict::slower ? Style::red : Style::yellow;
}

// Describes a pair's other variants than the one that its line shows.
std::string beside(const evidence::PairResult& pair, const evidence::VariantResult& shown) {
  std::string text;
  const evidence::VariantResult* best = evidence::best_variant(pair);
  if (best != nullptr && best != &shown)
    text += fmt::format("; best {}x by {}", base::significant(best->speedup->value), best->name);
  for (const evidence::VariantResult& variant : pair.variants) {
    if (variant.name == pair.lesson && &variant != &shown)
      text += fmt::format("; its lesson, {}, was {}: {}", variant.name, to_string(variant.status), variant.reason);
    if (!variant.computes_output) text += fmt::format("; not verified: {} (control)", variant.name);
    if (variant.not_run) text += fmt::format("; {}: {}", not_run_text(variant), variant.name);
  }
  return text;
}

std::string timed_line(const evidence::PairResult& pair, const evidence::VariantResult& shown, const base::Painter& paint,
                       const LineWidths& widths) {
  const evidence::Speedup& speedup = *shown.speedup;
  std::vector<std::string> parts;
  if (shown.floor) parts.push_back(floor_text(*shown.floor));
  // If the limit is nearness to the floor, the floor's text says it.
  if (shown.floor && !shown.floor->held_back_by.empty() && shown.floor->limit_from != evidence::LimitFrom::floor)
    parts.push_back("limited by " + shown.floor->held_back_by);
  if (const std::string share = share_text(pair, shown); !share.empty()) parts.push_back(share);
  if (shown.changes_precision && shown.accuracy) parts.push_back(fmt::format("error {:.1e}", shown.accuracy->unquantized_l2));
  const std::string verdict = fmt::format("{:<{}}", words(speedup.verdict), parts.empty() ? 0 : widest_verdict);
  const std::string times = pair.variants.empty()
                                ? median_text(shown)
                                : fmt::format("{} -> {}", median_text(pair.variants.front()), median_text(shown));
  return fmt::format("{:<{}}  {:<{}}  {:<23}  {:>22}  {}{}{}{}", label_of(pair), widths.target, shown.name, widths.variant,
                     speedup_text(speedup), times, paint(style_of(speedup.verdict), verdict), parts.empty() ? "" : "  ",
                     base::join(parts, ", "), beside(pair, shown));
}

std::string verified_line(const evidence::PairResult& pair, const base::Painter& paint, const LineWidths& widths) {
  std::size_t checked = 0;
  const evidence::VariantResult* worst = nullptr;  // of its limit
  const auto part_of_limit = [](const evidence::VariantResult& variant) {
    return variant.accuracy->relative_l2 / variant.accuracy->limit_relative_l2;
  };
  for (const evidence::VariantResult& variant : pair.variants) {
    if (variant.status != evidence::Status::passed) continue;  // a library that was left out: a warning says why
    checked += variant.computes_output;
    if (!variant.accuracy || !(variant.accuracy->limit_relative_l2 > 0)) continue;
    if (worst == nullptr || part_of_limit(variant) > part_of_limit(*worst)) worst = &variant;
  }
  std::string line = fmt::format("{:<{}}  {}  {} verified", label_of(pair), widths.target, paint(Style::green, "passed"),
                                 base::plural(checked, "variant"));
  if (worst != nullptr)
    line += fmt::format(", relative L2 error at most {:.1e} of {:.1e} allowed ({})", worst->accuracy->relative_l2,
                        worst->accuracy->limit_relative_l2, worst->name);
  if (!pair.edges.empty()) line += fmt::format(", {} too", base::plural(pair.edges.size(), "edge"));
  return line;
}

std::string energy_line(const evidence::VariantResult& variant, std::size_t width) {
  const evidence::Energy& e = *variant.energy;
  std::string line = fmt::format("  energy  {:<{}}  {:>9} a run [{}, {}], {:.0f} W", variant.name, width, joules_text(e.median_j),
                                 joules_text(e.low_j), joules_text(e.high_j), e.average_w);
  const auto add = [&](double amount, double efficiency, const char* unit, const char* unit_per_joule) {
    if (amount > 0)
      line += fmt::format(", {} at {} {}", base::human_rate(amount * 1e3 / e.run_ms, unit), base::significant(efficiency),
                          unit_per_joule);
  };
  add(variant.cost.flops, e.gflop_per_j, "FLOP", "GFLOP/J");
  add(variant.cost.bytes, e.gb_per_j, "B", "GB/J");
  if (e.ratio) line += fmt::format("; {} less than the baseline", energy_ratio_text(e));
  return base::on_screen(line) + '\n';
}

std::string tokens_line(const evidence::VariantResult& variant, std::size_t width) {
  const evidence::InferenceTiming& i = *variant.inference;
  std::string line =
      fmt::format("  tokens  {:<{}}  TTFT {} (p99 {}), TPOT {} (p99 {}), {} of {}, {} tokens/s", variant.name, width,
                  base::display_ms(i.ttft_ms.mean), base::display_ms(i.ttft_ms.p99), base::display_ms(i.tpot_ms.mean),
                  base::display_ms(i.tpot_ms.p99), base::plural(i.tokens, "token"), base::plural(i.requests, "request"),
                  base::significant(i.tokens_per_second));
  if (i.goodput) line += fmt::format(", goodput {}", goodput_text(*i.goodput));
  return base::on_screen(line) + '\n';
}

// Lists what a reader of the times should know, each sentence once.
std::string warning_lines(const evidence::SuiteResult& suite) {
  constexpr std::size_t most_lines = 5;
  std::string text;
  std::size_t shown = 0;
  for (const Said& warning : warnings_of(suite.pairs))
    if (++shown <= most_lines)
      text += base::on_screen(fmt::format("{}: warning: {}", short_list(warning.pairs), warning.text)) + '\n';
  if (shown > most_lines) text += fmt::format("{} in the reports\n", base::plural(shown - most_lines, "more warning"));
  return text;
}

}  // namespace

std::string pair_details(const evidence::PairResult& result, const LineWidths& widths) {
  std::string text;
  if (result.status != evidence::Status::passed) return text;
  std::size_t width = widths.variant;
  for (const evidence::VariantResult& variant : result.variants)
    if (variant.inference || variant.energy) width = std::max(width, variant.name.size());
  for (const evidence::VariantResult& variant : result.variants)
    if (variant.inference) text += tokens_line(variant, width);
  for (const evidence::VariantResult& variant : result.variants)
    if (variant.energy) text += energy_line(variant, width);
  return text;
}

std::vector<std::string> not_available(const evidence::SuiteResult& suite) {
  // Losses that nobody asked for by name are in the reports only.
  using Kind = evidence::LostKind;
  constexpr std::array asked_for{Kind::counters, Kind::counters_refused, Kind::tool_profile, Kind::energy};
  std::vector<std::string> lines;
  for (const Said& lacking : grouped_by(suite.pairs, [&](const evidence::PairResult& pair) {
         std::vector<std::string> texts;
         for (const evidence::Lost& lost : pair.lost)
           if (std::ranges::find(asked_for, lost.kind) != asked_for.end()) texts.push_back(lost.text);
         return texts;
       }))
    lines.push_back(fmt::format("{} ({})", lacking.text, short_list(lacking.pairs)));
  return lines;
}

std::string pair_line(const evidence::PairResult& result, const base::Painter& paint, const LineWidths& widths) {
  if (result.status == evidence::Status::passed) {
    const evidence::VariantResult* shown = headline(result);
    const std::string profile = evidence::profile_sentence(result);
    return base::on_screen(shown != nullptr ? timed_line(result, *shown, paint, widths) : verified_line(result, paint, widths)) +
           (profile.empty() ? "" : "\n  " + base::on_screen(paint(Style::dim, profile)));
  }
  const Style style = result.status == evidence::Status::skipped ? Style::dim : Style::red;
  return base::on_screen(
      fmt::format("{:<{}}  {}  {}", label_of(result), widths.target, paint(style, outcome_of(result)), result.reason));
}

std::string summary(const evidence::SuiteResult& suite, const evidence::Manifest& manifest, const base::Painter& paint) {
  const evidence::RunSummary all = evidence::summarize(suite, manifest);
  std::string text = "\n";
  if (const std::string early = ended_early_text(all); !early.empty())
    text += base::on_screen(paint(Style::yellow, early)) + '\n';
  text += fmt::format("{} in {}: {}\n", base::plural(static_cast<std::size_t>(all.outcomes.selected), counted(suite)),
                      base::human_duration(all.wall_s), outcomes_text(all.outcomes, paint));
  text += chapter_lines(all, paint);
  if (all.speedups.count > 1)
    text += fmt::format("Speedup of the lessons: geometric mean {}x, best {}x ({}), least {}x ({})\n",
                        base::significant(all.speedups.geometric_mean), base::significant(all.speedups.best),
                        all.speedups.best_target, base::significant(all.speedups.worst), all.speedups.worst_target);
  text += slowest_lines(suite, paint);
  text += skip_lines(suite, paint);
  for (const Said& advice : grouped_by(suite.pairs, [](const evidence::PairResult& pair) {
         std::vector<std::string> texts;
         for (const evidence::Problem& problem : pair.problems)
           if (pair.status != evidence::Status::skipped && !problem.advice.empty()) texts.push_back(problem.advice);
         return texts;
       }))
    text += base::on_screen(fmt::format("{}: {}", short_list(advice.pairs), advice.text)) + '\n';
  text += low_ceilings_line(suite);
  if (const std::string guessed = guessed_ceilings_text(all); !guessed.empty()) text += base::on_screen(guessed) + '\n';
  return text + warning_lines(suite);
}

}  // namespace aisp::report
