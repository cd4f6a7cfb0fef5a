// SPDX-License-Identifier: Apache-2.0
#include "base/text.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/system/terminal.hpp"

namespace aisp::base {
namespace {

// Whatever the locale of the program around us: printf would write its comma.
std::string format(double value, std::chars_format style, int digits) {
  std::array<char, 400> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value, style, digits).ptr};
}

}  // namespace

bool glob_match(std::string_view pattern, std::string_view text) {
  return ::fnmatch(std::string{pattern}.c_str(), std::string{text}.c_str(), FNM_NOESCAPE) == 0;
}

bool is_glob(std::string_view text) { return text.find_first_of("*?[") != std::string_view::npos; }

// Letters to add, leave out or replace, or neighbours to swap.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(above);
    above.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::vector<std::string> nearest(const std::vector<std::string>& names, std::string_view word, std::size_t count) {
  std::vector<std::pair<std::size_t, const std::string*>> ranked;
  const std::string wanted = lower(word);
  for (const std::string& name : names) {
    const std::string candidate = lower(name);
    const bool contains = !wanted.empty() && candidate.find(wanted) != std::string::npos;
    const std::size_t distance = contains ? 1 : edit_distance(candidate, wanted);
    // Beyond half of its letters a word is another word, not a slip.
    if (contains || distance <= std::max<std::size_t>(wanted.size(), candidate.size()) / 2) ranked.emplace_back(distance, &name);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> result;
  for (std::size_t i = 0; i < std::min(count, ranked.size()); ++i) result.push_back(*ranked[i].second);
  return result;
}

std::string significant(double value, int digits) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (value == 0) return "0";
  if (std::fabs(value) >= 1e15) return format(value, std::chars_format::scientific, std::max(0, digits - 1));
  const auto decimals_of = [&](double x) {
    return std::max(0, digits - 1 - static_cast<int>(std::floor(std::log10(std::fabs(x)))));
  };
  const int decimals = std::min(decimals_of(value), 20);
  // 9.996 with three digits is 10.0, not 10.00.
  const double scale = std::pow(10.0, decimals);
  const double rounded = std::round(value * scale) / scale;
  return format(value, std::chars_format::fixed, rounded == 0 ? decimals : std::min(decimals, decimals_of(rounded)));
}

std::string human_bytes(double bytes) {
  constexpr std::array units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (std::fabs(bytes) >= 1023.95 && unit + 1 < units.size()) {
    bytes /= 1024;
    ++unit;
  }
  const bool whole = unit == 0 || std::fabs(bytes - std::round(bytes)) < 0.05 || std::fabs(bytes) >= 100;
  return format(bytes, std::chars_format::fixed, whole ? 0 : 1) + " " + units[unit];
}

std::string human_duration(double seconds) {
  if (seconds < 0) return "-" + human_duration(-seconds);
  if (seconds < 0.9995) return display_ms(seconds * 1e3);
  if (seconds < 9.95) return significant(seconds, 2) + " s";
  const auto whole = static_cast<long long>(std::llround(seconds));
  const auto two = [](long long high, const char* high_unit, long long low, const char* low_unit) {
    std::string text = std::to_string(high) + " " + high_unit;
    if (low != 0) text += " " + std::to_string(low) + " " + low_unit;
    return text;
  };
  if (whole < 60) return std::to_string(whole) + " s";
  if (whole < 3600) return two(whole / 60, "min", whole % 60, "s");
  const long long minutes = (whole + 30) / 60;
  if (minutes < 48 * 60) return two(minutes / 60, "h", minutes % 60, "min");
  const long long hours = (minutes + 30) / 60;
  return two(hours / 24, "d", hours % 24, "h");
}

std::string human_rate(double per_second, std::string_view unit) {
  constexpr std::array prefixes = {"", "k", "M", "G", "T", "P", "E"};
  std::size_t prefix = 0;
  while (std::fabs(per_second) >= 999.5 && prefix + 1 < prefixes.size()) {
    per_second /= 1000;
    ++prefix;
  }
  return significant(per_second) + " " + prefixes[prefix] + std::string{unit} + "/s";
}

std::string display_ms(double milliseconds) {
  const double magnitude = std::fabs(milliseconds);
  if (magnitude == 0) return "0 ms";
  if (magnitude < 0.9995e-3) return significant(milliseconds * 1e6) + " ns";
  if (magnitude < 0.9995) return significant(milliseconds * 1e3) + " us";
  if (magnitude < 999.5) return significant(milliseconds) + " ms";
  return significant(milliseconds / 1e3) + " s";
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (&part != &parts.front()) text += separator;
    text += part;
  }
  return text;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n\v\f";
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::string one_line(std::string_view text, std::size_t limit) {
  constexpr std::string_view gap = " ... ";
  const std::size_t tail = limit / 4;
  std::string line{text.substr(0, text.size() > limit ? limit - tail - gap.size() : text.size())};
  if (text.size() > limit) line.append(gap).append(text.substr(text.size() - tail));
  return without_controls(line);
}

std::string lower(std::string_view text) {
  std::string result{text};
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

std::string plural(std::size_t count, std::string_view noun) {
  return std::to_string(count) + " " + std::string{noun} + (count == 1 ? "" : "s");
}

}  // namespace aisp::base
