// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace aisp::base {

// An integer from a text that anybody may have written. json.get<int>() converts 1e23 as well, which has no defined result, and
// wraps integers that are too large. Throws Error, Exit::usage, naming `place`.
template <std::integral T>
T json_integer(const nlohmann::json& value, std::string_view place) {
  if (!value.is_number_integer())
    throw Error{Exit::usage, fmt::format("{}: expected an integer, found {}", place,
                                         value.is_number() ? one_line(value.dump(), 40) : std::string{value.type_name()})};
  const bool fits =
      value.is_number_unsigned() ? std::in_range<T>(value.get<std::uint64_t>()) : std::in_range<T>(value.get<std::int64_t>());
  if (!fits) throw Error{Exit::usage, fmt::format("{}: {} is out of range", place, one_line(value.dump(), 40))};
  return value.get<T>();
}

}  // namespace aisp::base
