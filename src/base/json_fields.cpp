// SPDX-License-Identifier: Apache-2.0
#include "base/json_fields.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace aisp::base {
namespace {

void demand_integer(const nlohmann::json& value, std::string_view place) {
  if (value.is_number_integer()) return;
  throw Error{Exit::usage, fmt::format("{}: expected an integer, found {}", place,
                                       value.is_number() ? one_line(value.dump(), 40) : std::string{value.type_name()})};
}

[[noreturn]] void out_of_range(const nlohmann::json& value, std::string_view place) {
  throw Error{Exit::usage, fmt::format("{}: {} is out of range", place, one_line(value.dump(), 40))};
}

}  // namespace

std::int64_t json_signed(const nlohmann::json& value, std::string_view place, std::int64_t lowest, std::int64_t highest) {
  demand_integer(value, place);
  if (value.is_number_unsigned() && !std::in_range<std::int64_t>(value.get<std::uint64_t>())) out_of_range(value, place);
  const auto number = value.get<std::int64_t>();
  if (number < lowest || number > highest) out_of_range(value, place);
  return number;
}

std::uint64_t json_unsigned(const nlohmann::json& value, std::string_view place, std::uint64_t highest) {
  demand_integer(value, place);
  if (!value.is_number_unsigned() && value.get<std::int64_t>() < 0) out_of_range(value, place);
  const auto number = value.get<std::uint64_t>();
  if (number > highest) out_of_range(value, place);
  return number;
}

}  // namespace aisp::base
