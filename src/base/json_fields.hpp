// SPDX-License-Identifier: Apache-2.0
// Structs as JSON, both directions from one list of their members: AISP_DESCRIBE(Thing, name, count) in the struct's namespace,
// and for an enum words_of(E) with the words in the order of its enumerators. Where a file calls a member otherwise:
//   template <class Visitor>
//   void describe(Thing& thing, Visitor& visit) { AISP_VISIT(visit, thing, name, count); visit("of", thing.subject); }
// Reading names the place of what is wrong; a member that the file lacks keeps its value. A type with another form has
// write_field and read_field.
#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "base/words.hpp"

// Visits members of `thing` under their own names.
#define AISP_VISIT(visit, thing, ...) AISP_REPEAT(AISP_VISIT_FIRST(visit, thing, __VA_ARGS__))
#define AISP_DESCRIBE(Thing, ...)               \
  template <class Visitor>                      \
  void describe(Thing& thing, Visitor& visit) { \
    AISP_VISIT(visit, thing, __VA_ARGS__);      \
  }
// The preprocessor calls no macro inside of itself, so each pass visits one member and names the macro for the next pass.
#define AISP_VISIT_FIRST(visit, thing, member, ...) \
  visit(#member, (thing).member) __VA_OPT__(; AISP_VISIT_REST AISP_PARENTHESES(visit, thing, __VA_ARGS__))
#define AISP_VISIT_REST() AISP_VISIT_FIRST
#define AISP_PARENTHESES ()
#define AISP_REPEAT(...) AISP_REPEAT_16(AISP_REPEAT_16(AISP_REPEAT_16(AISP_REPEAT_16(__VA_ARGS__))))
#define AISP_REPEAT_16(...) AISP_REPEAT_4(AISP_REPEAT_4(AISP_REPEAT_4(AISP_REPEAT_4(__VA_ARGS__))))
#define AISP_REPEAT_4(...) AISP_REPEAT_1(AISP_REPEAT_1(AISP_REPEAT_1(AISP_REPEAT_1(__VA_ARGS__))))
#define AISP_REPEAT_1(...) __VA_ARGS__

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

template <class T>
concept WritesItself = requires(nlohmann::json& to, T& value) {
  write_field(to, value);
};
template <class T>
concept ReadsItself = requires(const nlohmann::json& from, T& value, const std::string& place) {
  read_field(from, value, place);
};

class JsonWriter {
 public:
  explicit JsonWriter(nlohmann::json& to) : to_{to} { to_ = nlohmann::json::object(); }
  template <class T>
  void operator()(const std::string& name, T& value) {
    to_[name] = written(value);
  }
  // Nothing is left out.
  template <class T>
  void operator()(const std::string& name, std::optional<T>& value) {
    if (value) to_[name] = written(*value);
  }

 private:
  template <class T>
  static nlohmann::json written(T& value) {
    using nlohmann::json;
    if constexpr (WritesItself<T>) {
      json own;
      write_field(own, value);
      return own;
    } else if constexpr (std::is_enum_v<T>) return word_for(value);
    else if constexpr (std::is_same_v<T, double>) return std::isfinite(value) ? json(value) : json(nullptr);
    else if constexpr (std::is_class_v<T> && !std::is_convertible_v<T, json>) {
      json object;
      JsonWriter writer{object};
      describe(value, writer);
      return object;
    } else return value;
  }
  template <class T>
  static nlohmann::json written(std::vector<T>& values) {
    nlohmann::json array = nlohmann::json::array();
    if constexpr (WritesItself<std::vector<T>>) write_field(array, values);
    else if constexpr (std::is_same_v<T, bool>) array = values;
    else
      for (T& value : values) array.push_back(written(value));
    return array;
  }
  template <class T>
  static nlohmann::json written(std::map<std::string, T>& values) {
    nlohmann::json object = nlohmann::json::object();
    for (auto& [name, value] : values) object[name] = written(value);
    return object;
  }
  static nlohmann::json written(std::string& value) { return value; }

  nlohmann::json& to_;
};

class JsonReader {
 public:
  JsonReader(const nlohmann::json& from, std::string place) : from_{from}, place_{std::move(place)} {
    if (!from.is_object()) wrong(place_, "an object", from);
  }
  template <class T>
  void operator()(const std::string& name, T& value) {
    if (const auto found = from_.find(name); found != from_.end()) read(*found, value, place_ + "." + name);
  }

  template <class T>
  static void read(const nlohmann::json& from, T& value, const std::string& place) {
    if constexpr (ReadsItself<T>) read_field(from, value, place);
    else read_plainly(from, value, place);
  }
  // Whatever read_field says: for read_field itself, which may know another form too.
  template <class T>
  static void read_plainly(const nlohmann::json& from, T& value, const std::string& place) {
    if constexpr (std::is_enum_v<T>) {
      const std::optional<T> known = from.is_string() ? find_word<T>(from.get_ref<const std::string&>()) : std::nullopt;
      if (!known) unknown_word(place, from, words_of(value).words);
      value = *known;
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!from.is_boolean()) wrong(place, "true or false", from);
      value = from.get<bool>();
    } else if constexpr (std::is_same_v<T, double>) {
      if (!from.is_number() && !from.is_null()) wrong(place, "a number", from);
      value = from.is_null() ? std::numeric_limits<double>::quiet_NaN() : from.get<double>();
    } else if constexpr (std::is_integral_v<T>) {
      value = json_integer<T>(from, place);
    } else {
      JsonReader reader{from, place};
      describe(value, reader);
    }
  }
  static void read_plainly(const nlohmann::json& from, std::string& value, const std::string& place) {
    if (!from.is_string()) wrong(place, "text", from);
    value = from.get<std::string>();
  }
  template <class T>
  static void read_plainly(const nlohmann::json& from, std::optional<T>& value, const std::string& place) {
    if (!from.is_null()) read(from, value.emplace(), place);
  }
  template <class T>
  static void read_plainly(const nlohmann::json& from, std::vector<T>& values, const std::string& place) {
    if (!from.is_array()) wrong(place, "an array", from);
    values.clear();
    for (const nlohmann::json& element : from) {
      const std::string element_place = fmt::format("{}[{}]", place, values.size());
      T value{};
      read(element, value, element_place);
      values.push_back(std::move(value));
    }
  }
  template <class T>
  static void read_plainly(const nlohmann::json& from, std::map<std::string, T>& values, const std::string& place) {
    if (!from.is_object()) wrong(place, "an object", from);
    values.clear();
    for (const auto& [name, value] : from.items()) read(value, values[name], place + "." + name);
  }
  [[noreturn]] static void wrong(const std::string& place, std::string_view expected, const nlohmann::json& found) {
    throw Error{Exit::usage, fmt::format("{}: expected {}, found {}", place, expected, found.type_name())};
  }

 private:
  // The word of a set for "none" is empty, and goes without saying.
  template <std::size_t n>
  [[noreturn]] static void unknown_word(const std::string& place, const nlohmann::json& found,
                                        const std::array<std::string_view, n>& words) {
    std::vector<std::string_view> named;
    std::ranges::copy_if(words, std::back_inserter(named), [](std::string_view word) { return !word.empty(); });
    throw Error{Exit::usage, fmt::format("{}: {} is none of {}", place, quoted(found), fmt::join(named, ", "))};
  }
  // A value in a message: short, whatever a file holds.
  static std::string quoted(const nlohmann::json& value) {
    return one_line(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace), 80);
  }
  const nlohmann::json& from_;
  std::string place_;
};

template <class T>
nlohmann::json json_of(const T& thing) {
  T copy = thing;
  nlohmann::json object;
  JsonWriter writer{object};
  describe(copy, writer);
  return object;
}

}  // namespace aisp::base
