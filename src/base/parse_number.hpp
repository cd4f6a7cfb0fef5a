// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <charconv>
#include <optional>
#include <string_view>

namespace aisp::base {

// A number that is the whole text: no blanks, no sign but a minus, digits of base ten. Floating point may be "inf" or "nan".
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace aisp::base
