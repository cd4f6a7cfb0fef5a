// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace aisp::base {

// `lowest` to `highest`; use json_integer.
std::int64_t json_signed(const nlohmann::json& value, std::string_view place, std::int64_t lowest, std::int64_t highest);
std::uint64_t json_unsigned(const nlohmann::json& value, std::string_view place, std::uint64_t highest);

// An integer from a text that anybody may have written. json.get<int>() converts 1e23 as well, which has no defined result, and
// wraps integers that are too large. Throws Error, Exit::usage, naming `place`.
template <std::integral T>
T json_integer(const nlohmann::json& value, std::string_view place) {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::signed_integral<T>) return static_cast<T>(json_signed(value, place, Limits::min(), Limits::max()));
  else return static_cast<T>(json_unsigned(value, place, Limits::max()));
}

}  // namespace aisp::base
