// SPDX-License-Identifier: Apache-2.0
// Reading what a measurement gives: whatever describe() lists, and no number that is negative or none. Private to src/peak.
#pragma once
#include <fmt/format.h>

#include <cmath>
#include <string>

#include "base/error.hpp"
#include "base/json_fields.hpp"

namespace aisp::peak {

// Throws base::Error (usage) naming the place of a number that is no amount.
class Amounts {
 public:
  explicit Amounts(const std::string& place) : place_{place} {}
  void operator()(const std::string& name, double value) const {
    if (!std::isfinite(value) || value < 0)
      throw base::Error{base::Exit::usage, fmt::format("{}.{}: {} is no amount", place_, name, value)};
  }
  template <class T>
  void operator()(const std::string& /*name*/, T& /*value*/) const {}

 private:
  const std::string& place_;
};

template <class Thing>
void read_amounts(const nlohmann::json& from, Thing& thing, const std::string& place) {
  base::JsonReader reader{from, place};
  describe(thing, reader);
  const Amounts amounts{place};
  describe(thing, amounts);
}

}  // namespace aisp::peak
