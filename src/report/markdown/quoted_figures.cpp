// SPDX-License-Identifier: Apache-2.0
#include "report/markdown/quoted_figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <regex>

#include "base/error.hpp"
#include "base/text.hpp"
#include "base/words.hpp"
#include "report/numbers.hpp"

namespace aisp::report {
namespace {

using evidence::Expectations;
using evidence::ExpectedPair;
using evidence::ExpectedVariant;

struct Quote {
  std::string hardware, chapter, pair, variant, quantity;
};

const ExpectedPair* pair_of(const Quote& quote, const std::vector<Expectations>& all) {
  for (const Expectations& expectations : all) {
    if (expectations.hardware != quote.hardware || expectations.chapter != quote.chapter) continue;
    const auto found = expectations.pairs.find(quote.pair);
    if (found != expectations.pairs.end()) return &found->second;
  }
  return nullptr;
}

// As a variant of its own, the baseline is once as fast as itself and has no percentage.
std::optional<ExpectedVariant> variant_of(const ExpectedPair& pair, const std::string& name) {
  if (name == pair.baseline)
    return ExpectedVariant{
        .speedup = 1, .median_ms = pair.baseline_median_ms, .metrics = pair.baseline_metrics, .cost = pair.baseline_cost};
  const auto found = pair.variants.find(name);
  return found == pair.variants.end() ? std::nullopt : std::optional{found->second};
}

// Figures that a page may quote by a word alone. Times and metrics say more: time/256, metric:bytes_moved.
enum class Quoted : std::uint8_t { speedup, floor, bandwidth };
constexpr base::Words<3> words_of(Quoted) { return {{"speedup", "floor", "bandwidth"}}; }

constexpr std::string_view metric_of_pair = "metric:";

// "time" 1, "time/256" 256: what one of that many requests takes.
std::optional<double> parts_of_a_time(const std::string& quantity) {
  static const std::regex pattern{"time(?:/([1-9][0-9]{0,11}))?"};
  std::smatch found;
  if (!std::regex_match(quantity, found, pattern)) return std::nullopt;
  return found[1].matched ? base::parse_number<double>(found.str(1)) : 1;
}

std::optional<std::string> figure_of(const Quote& quote, const std::vector<Expectations>& all) {
  const ExpectedPair* pair = pair_of(quote, all);
  if (pair == nullptr) return std::nullopt;
  const std::size_t slash = quote.variant.find('/');
  const auto variant = variant_of(*pair, quote.variant.substr(0, slash));
  if (!variant) return std::nullopt;
  const std::optional<Quoted> quoted = base::find_word<Quoted>(quote.quantity);
  if (quoted == Quoted::speedup) {
    if (slash == std::string::npos) return fmt::format("{}x", base::significant(variant->speedup));
    const auto other = variant_of(*pair, quote.variant.substr(slash + 1));
    return other ? std::optional{fmt::format("{}x", base::significant(variant->speedup / other->speedup))} : std::nullopt;
  }
  if (slash != std::string::npos) return std::nullopt;
  if (quoted == Quoted::floor && variant->percent_of_floor) return fmt::format("{:.0f} %", *variant->percent_of_floor);
  if (quoted == Quoted::bandwidth && variant->cost.bytes > 0 && variant->median_ms > 0)
    return base::human_rate(variant->cost.bytes / variant->median_ms * 1e3, "B");
  if (quote.quantity.starts_with(metric_of_pair)) {
    const auto found = variant->metrics.find(quote.quantity.substr(metric_of_pair.size()));
    return found == variant->metrics.end() ? std::nullopt : std::optional{metric_text(found->second)};
  }
  const auto parts = parts_of_a_time(quote.quantity);
  return parts ? std::optional{base::display_ms(variant->median_ms / *parts)} : std::nullopt;
}

std::string in_words(const std::string& text) {
  std::string words = text;
  std::ranges::replace(words, '\n', ' ');
  return words;
}

// How long the figure is that ends the text before a comment, 0 without one: in a unit of aisp's, or in that of the metric. The 5
// of 4-5 is not negative.
std::size_t length_at_the_end(const std::string& words, const Quote& quote, const std::string& figure) {
  static const std::regex of_aisp{R"([0-9]+(\.[0-9]+)?(x|\s(%|ns|us|ms|s|[kMGTPE]?B/s))$)"};
  static const std::regex of_metric{R"((\B-)?[0-9]+(\.[0-9]+)?[kMGT]?$)"};
  const bool is_metric = quote.quantity.starts_with(metric_of_pair);
  const std::string unit = is_metric ? figure.substr(std::min(figure.find(' '), figure.size())) : "";
  if (!words.ends_with(unit)) return 0;
  const std::string rest = words.substr(0, words.size() - unit.size());
  std::smatch found;
  return std::regex_search(rest, found, is_metric ? of_metric : of_aisp) ? found.str().size() + unit.size() : 0;
}

}  // namespace

std::string with_quoted_figures(const std::string& page, const std::vector<Expectations>& all, const std::string& place) {
  static const std::regex comment{R"(<!--\s+(?!answers\s)(\S+)\s+([a-z][a-z0-9_]*):(\S+)\s+(\S+)\s+(\S+)\s+-->)"};
  constexpr std::size_t longest_number = 16;
  std::string written;
  auto from = page.begin();
  for (std::sregex_iterator match{page.begin(), page.end(), comment}, end; match != end; ++match) {
    const auto refuse = [&](std::string_view what) {
      throw base::Error{base::Exit::usage, fmt::format("{}: {}: {}", place, in_words(match->str()), what)};
    };
    const Quote quote{(*match)[1], (*match)[2], (*match)[3], (*match)[4], (*match)[5]};
    const auto figure = figure_of(quote, all);
    if (!figure)
      refuse(
          "nothing of that name is recorded; HARDWARE TARGET VARIANT, then speedup, time, time/N, floor, bandwidth or "
          "metric:NAME");
    written.append(from, (*match)[0].first);
    from = (*match)[0].first;
    // The unit may stand on the next line.
    const std::string words =
        in_words(written.substr(written.size() - std::min(written.size(), figure->size() + longest_number)));
    const std::size_t length = length_at_the_end(words, quote, *figure);
    if (length == 0) refuse(fmt::format("no figure stands right before it, as in {}", *figure));
    if (words.substr(words.size() - length) == *figure) continue;
    const std::size_t line_break = written.find('\n', written.size() - length);
    const std::size_t behind_break = line_break == std::string::npos ? 0 : written.size() - line_break;
    written.resize(written.size() - length);
    written += *figure;
    // The line that the unit stands on is as long as before.
    if (behind_break > 0 && written[written.size() - behind_break] == ' ') written[written.size() - behind_break] = '\n';
  }
  return written.append(from, page.end());
}

}  // namespace aisp::report
