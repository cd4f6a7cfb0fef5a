// SPDX-License-Identifier: Apache-2.0
#include "report/markdown/quoted_figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <regex>

#include "base/error.hpp"
#include "base/parse_number.hpp"
#include "base/text.hpp"

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
    return ExpectedVariant{.speedup = 1, .median_ms = pair.baseline_median_ms, .cost = pair.baseline_cost};
  const auto found = pair.variants.find(name);
  return found == pair.variants.end() ? std::nullopt : std::optional{found->second};
}

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
  if (quote.quantity == "speedup") {
    if (slash == std::string::npos) return fmt::format("{}x", base::significant(variant->speedup));
    const auto other = variant_of(*pair, quote.variant.substr(slash + 1));
    return other ? std::optional{fmt::format("{}x", base::significant(variant->speedup / other->speedup))} : std::nullopt;
  }
  if (slash != std::string::npos) return std::nullopt;
  if (quote.quantity == "floor" && variant->percent_of_floor) return fmt::format("{:.0f} %", *variant->percent_of_floor);
  if (quote.quantity == "bandwidth" && variant->cost.bytes > 0 && variant->median_ms > 0)
    return base::human_rate(variant->cost.bytes / variant->median_ms * 1e3, "B");
  const auto parts = parts_of_a_time(quote.quantity);
  return parts ? std::optional{base::display_ms(variant->median_ms / *parts)} : std::nullopt;
}

// A figure at the end of the text before a comment, whose unit may stand on the next line.
const std::regex& figure_at_the_end() {
  static const std::regex pattern{R"([0-9]+(\.[0-9]+)?(x|\s(%|ns|us|ms|s|[kMGTPE]?B/s))$)"};
  return pattern;
}

std::string in_words(const std::string& figure) {
  std::string words = figure;
  std::ranges::replace(words, '\n', ' ');
  return words;
}

}  // namespace

std::string with_quoted_figures(const std::string& page, const std::vector<Expectations>& all, const std::string& place) {
  static const std::regex comment{R"(<!-- (\S+) ([a-z][a-z0-9_]*):(\S+) (\S+) (\S+) -->)"};
  constexpr std::size_t longest_figure = 16;
  std::string written;
  auto from = page.begin();
  for (std::sregex_iterator match{page.begin(), page.end(), comment}, end; match != end; ++match) {
    const auto refuse = [&](std::string_view what) {
      throw base::Error{base::Exit::usage, fmt::format("{}: {}: {}", place, match->str(), what)};
    };
    const auto figure = figure_of({(*match)[1], (*match)[2], (*match)[3], (*match)[4], (*match)[5]}, all);
    if (!figure)
      refuse("nothing of that name is recorded; HARDWARE TARGET VARIANT, then speedup, time, time/N, floor or bandwidth");
    written.append(from, (*match)[0].first);
    from = (*match)[0].first;
    const std::string before = written.substr(written.size() - std::min(written.size(), longest_figure));
    std::smatch found;
    if (!std::regex_search(before, found, figure_at_the_end()))
      refuse(fmt::format("no figure stands right before it, as in {}", *figure));
    if (in_words(found.str()) == *figure) continue;
    written.resize(written.size() - found.str().size());
    written += *figure;
  }
  return written.append(from, page.end());
}

}  // namespace aisp::report
