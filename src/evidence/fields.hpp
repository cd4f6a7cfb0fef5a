// SPDX-License-Identifier: Apache-2.0
// How the fields that describe() names are written and read. Not for use beyond evidence's own .cpp files.
#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/json_integer.hpp"
#include "base/text.hpp"
#include "evidence/result.hpp"

namespace aisp::evidence {

using nlohmann::json;

// A value in a message: short, whatever a file holds.
inline std::string quoted(const json& value) {
  return base::one_line(value.dump(-1, ' ', true, json::error_handler_t::replace), 80);
}

template <class E, std::size_t n>
struct Words {
  std::array<std::string_view, n> words;
};
constexpr Words<Status, 5> words_of(Status) { return {{"passed", "failed", "timeout", "crashed", "skipped"}}; }
constexpr Words<Verdict, 3> words_of(Verdict) { return {{"faster", "slower", "cannot_tell"}}; }
constexpr Words<Direction, 2> words_of(Direction) { return {{"lower", "higher"}}; }
constexpr Words<VariantRole, 4> words_of(VariantRole) { return {{"baseline", "optimized", "control", "library"}}; }

template <class Visitor>
void describe(StageRecord& s, Visitor& visit) {
  visit("name", s.name);
  visit("started_s", s.started_s);
  visit("elapsed_s", s.elapsed_s);
  visit("limit_s", s.limit_s);
  visit("finished", s.finished);
}

template <class Visitor>
void describe(Ceilings& c, Visitor& visit) {
  visit("memory_bytes_s", c.memory_bytes_s);
  visit("flops_s", c.flops_s);
  visit("source", c.source);
}

template <class Visitor>
void describe(DeclaredCost& c, Visitor& visit) {
  visit("flops", c.flops);
  visit("bytes", c.bytes);
  visit("math", c.math);
  visit("bytes_of", c.bytes_of);
}

class Writer {
 public:
  explicit Writer(json& to) : to_{to} { to_ = json::object(); }
  template <class T>
  void operator()(const std::string& name, T& value) {
    to_[name] = written(value);
  }
  template <class T>
  void operator()(const std::string& name, std::optional<T>& value) {
    if (value) to_[name] = written(*value);
  }

 private:
  template <class T>
  static json written(T& value) {
    if constexpr (std::is_enum_v<T>) return words_of(value).words[static_cast<std::size_t>(value)];
    else if constexpr (std::is_same_v<T, double>) return std::isfinite(value) ? json(value) : json(nullptr);
    else if constexpr (std::is_class_v<T> && !std::is_convertible_v<T, json>) {
      json object;
      Writer writer{object};
      describe(value, writer);
      return object;
    } else return value;
  }
  template <class T>
  static json written(std::vector<T>& values) {
    json array = json::array();
    for (T& value : values) array.push_back(written(value));
    return array;
  }
  static json written(std::map<std::string, std::string>& values) { return values; }
  template <class T>
  static json written(std::map<std::string, T>& values) {
    json object = json::object();
    for (auto& [name, value] : values) object[name] = written(value);
    return object;
  }
  static json written(std::string& value) { return value; }
  // By stage name, as the watchdog's readers expect it.
  static json written(std::vector<StageRecord>& records) {
    json object = json::object();
    for (StageRecord& record : records) {
      json& entry = object[record.name];
      Writer writer{entry};
      describe(record, writer);
      entry.erase("name");
    }
    return object;
  }
  json& to_;
};

class Reader {
 public:
  Reader(const json& from, std::string place) : from_{from}, place_{std::move(place)} {
    if (!from.is_object()) wrong(place_, "an object", from);
  }
  template <class T>
  void operator()(const std::string& name, T& value) {
    if (const auto found = from_.find(name); found != from_.end()) read(*found, value, place_ + "." + name);
  }

 private:
  [[noreturn]] static void wrong(const std::string& place, std::string_view expected, const json& found) {
    throw base::Error{base::Exit::usage, fmt::format("{}: expected {}, found {}", place, expected, found.type_name())};
  }
  template <class T>
  static void read(const json& from, T& value, const std::string& place) {
    if constexpr (std::is_enum_v<T>) {
      const auto& words = words_of(value).words;
      const auto word =
          from.is_string() ? std::find(words.begin(), words.end(), from.get_ref<const std::string&>()) : words.end();
      if (word == words.end())
        throw base::Error{base::Exit::usage, fmt::format("{}: {} is none of {}", place, quoted(from), fmt::join(words, ", "))};
      value = static_cast<T>(word - words.begin());
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!from.is_boolean()) wrong(place, "true or false", from);
      value = from.get<bool>();
    } else if constexpr (std::is_same_v<T, double>) {
      if (!from.is_number() && !from.is_null()) wrong(place, "a number", from);
      value = from.is_null() ? std::numeric_limits<double>::quiet_NaN() : from.get<double>();
    } else if constexpr (std::is_integral_v<T>) {
      value = base::json_integer<T>(from, place);
    } else {
      Reader reader{from, place};
      describe(value, reader);
    }
  }
  static void read(const json& from, std::string& value, const std::string& place) {
    if (!from.is_string()) wrong(place, "text", from);
    value = from.get<std::string>();
  }
  template <class T>
  static void read(const json& from, std::optional<T>& value, const std::string& place) {
    if (!from.is_null()) read(from, value.emplace(), place);
  }
  template <class T>
  static void read(const json& from, std::vector<T>& values, const std::string& place) {
    if (!from.is_array()) wrong(place, "an array", from);
    values.clear();
    for (const json& element : from) {
      const std::string element_place = fmt::format("{}[{}]", place, values.size());
      read(element, values.emplace_back(), element_place);
    }
  }
  static void read(const json& from, std::vector<StageRecord>& records, const std::string& place) {
    if (!from.is_object()) wrong(place, "an object", from);
    records.clear();
    for (const auto& [name, entry] : from.items()) {
      read<StageRecord>(entry, records.emplace_back(), place + "." + name);
      records.back().name = name;
    }
    std::sort(records.begin(), records.end(),
              [](const StageRecord& a, const StageRecord& b) { return a.started_s < b.started_s; });
  }
  static void read(const json& from, std::map<std::string, std::string>& values, const std::string& place) {
    if (!from.is_object()) wrong(place, "an object", from);
    values.clear();
    for (const auto& [name, value] : from.items()) read(value, values[name], place + "." + name);
  }
  template <class T>
  static void read(const json& from, std::map<std::string, T>& values, const std::string& place) {
    if (!from.is_object()) wrong(place, "an object", from);
    values.clear();
    for (const auto& [name, value] : from.items()) read(value, values[name], place + "." + name);
  }
  const json& from_;
  std::string place_;
};

}  // namespace aisp::evidence
