// SPDX-License-Identifier: Apache-2.0
// Text for people, and numbers in text. Numbers are rounded to three or four significant digits; full precision belongs in JSON.
#pragma once
#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace aisp::base {

// Shell patterns: * (any run), ? (one character), [a-z] and [!a-z]. An unclosed [ stands for itself. Case matters.
bool glob_match(std::string_view pattern, std::string_view text);
bool is_glob(std::string_view text);

// The `count` names with the smallest edit distance to `word`, nearest first; names with nothing in common with it are left out.
std::vector<std::string> nearest(const std::vector<std::string>& names, std::string_view word, std::size_t count = 3);
std::size_t edit_distance(std::string_view a, std::string_view b);

std::string human_bytes(double bytes);                             // "1.5 GiB", "512 B"
std::string human_duration(double seconds);                        // "850 ms", "12 s", "3 min 20 s", "4 h 5 min"
std::string human_rate(double per_second, std::string_view unit);  // (4.25e12, "B") "4.25 TB/s"; (7.17e14, "FLOP") "717 TFLOP/s"
std::string display_ms(double milliseconds);                       // "3.58 us", "12.4 ms", "1.23 s"
std::string significant(double value, int digits = 3);             // "0.0123", "4.25", "717"; never an exponent below 1e15

std::string join(const std::vector<std::string>& parts, std::string_view separator);
std::vector<std::string> split(std::string_view text, char separator);  // keeps empty fields
std::string_view trim(std::string_view text);
std::string lower(std::string_view text);
// For messages that quote what others wrote: control characters become spaces, so that no file can move the cursor or add lines,
// and a text longer than `limit` bytes loses its middle.
std::string one_line(std::string_view text, std::size_t limit = 1000);
// (1, "pair") "1 pair", (2, "pair") "2 pairs"
std::string plural(std::size_t count, std::string_view noun);

// Reads a number that is the whole text: no blanks, no sign but a minus, digits of base ten; of floating point also "inf", "nan".
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace aisp::base
