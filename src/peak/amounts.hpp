// SPDX-License-Identifier: Apache-2.0
// Reading what a measurement gives: all that describe() lists, and no number that is negative or none. Private to src/peak.
#pragma once
#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "base/json_fields.hpp"

namespace aisp::peak {

// Throws base::Error (usage) naming the place of a member that is missing, or of a number that is no amount.
class Amounts {
 public:
  Amounts(const nlohmann::json& from, const std::string& place) : from_{from}, place_{place} {}
  void operator()(const std::string& name, double value) const {
    demand(name);
    if (!std::isfinite(value) || value < 0)
      throw base::Error{base::Exit::usage, fmt::format("{}.{}: {} is no amount", place_, name, value)};
  }
  template <class T>
  void operator()(const std::string& name, T& /*value*/) const {
    demand(name);
  }
  template <class T>
  void operator()(const std::string& /*name*/, std::optional<T>& /*value*/) const {}

 private:
  void demand(const std::string& name) const {
    if (!from_.contains(name)) throw base::Error{base::Exit::usage, fmt::format("{}.{} is missing", place_, name)};
  }

  const nlohmann::json& from_;
  const std::string& place_;
};

template <class Thing>
void read_amounts(const nlohmann::json& from, Thing& thing, const std::string& place) {
  base::JsonReader reader{from, place};
  describe(thing, reader);
  const Amounts amounts{from, place};
  describe(thing, amounts);
}

}  // namespace aisp::peak
