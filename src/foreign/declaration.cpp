// SPDX-License-Identifier: Apache-2.0
#include "foreign/declaration.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "foreign/workload.hpp"
#include "machine/ceilings.hpp"
#include "pair/faults.hpp"
#include "pair/sizes.hpp"
#include "run/wire/blank.hpp"

namespace aisp::foreign {
namespace {

using nlohmann::json;

constexpr std::array types{
    std::pair{"f64", ElementType::f64},      std::pair{"f32", ElementType::f32},   std::pair{"f16", ElementType::f16},
    std::pair{"bf16", ElementType::bf16},    std::pair{"e4m3", ElementType::e4m3}, std::pair{"e5m2", ElementType::e5m2},
    std::pair{"i8", ElementType::i8},        std::pair{"u8", ElementType::u8},     std::pair{"i16", ElementType::i16},
    std::pair{"u16", ElementType::u16},      std::pair{"i32", ElementType::i32},   std::pair{"u32", ElementType::u32},
    std::pair{"i64", ElementType::i64},      std::pair{"u64", ElementType::u64},   std::pair{"e2m1x2", ElementType::e2m1x2},
    std::pair{"s4x2", ElementType::s4x2},    std::pair{"e3m2", ElementType::e3m2}, std::pair{"e8m0", ElementType::e8m0},
    std::pair{"record", ElementType::record}};
constexpr std::array roles{std::pair{"input", Role::input}, std::pair{"inout", Role::inout}, std::pair{"output", Role::output}};

// One of a list of words: "cache is 'warm'; it is one of cold, hot".
template <class Value, std::size_t count>
Value one_of(const json& given, const char* key, const std::array<std::pair<const char*, Value>, count>& words) {
  const std::string text = given.at(key).get<std::string>();
  std::vector<std::string> known;
  for (const auto& [word, value] : words) {
    if (text == word) return value;
    known.emplace_back(word);
  }
  throw base::Error{base::Exit::usage,
                    fmt::format("{} is '{}'; it is one of {}", key, base::one_line(text, 40), fmt::join(known, ", "))};
}

// The same of values that results name too, by their words.
template <class Value, std::size_t count>
Value one_of(const json& given, const char* key, const std::array<Value, count>& values) {
  std::array<std::pair<const char*, Value>, count> words;
  for (std::size_t i = 0; i < count; ++i) words[i] = {to_string(run::recorded(values[i])).data(), values[i]};
  return one_of(given, key, words);
}

Math math_of(const json& given) {
  std::array<std::pair<const char*, Math>, machine::math_kinds> words;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = {machine::name_of(static_cast<Math>(i)).data(), static_cast<Math>(i)};
  return one_of(given, "math", words);
}

// {} for what follows from the type, {"reduction": 4096}, {"exact": true}, {"within": [1e-5, 5e-5]}.
Tolerance tolerance_of(const json& given) {
  if (given.contains("exact")) return exact;
  if (given.contains("within")) return within(given["within"].at(0).get<double>(), given["within"].at(1).get<double>());
  return reduction_of(given.value("reduction", 1));
}

Cost cost_of(const json& given) {
  return {.flops = given.value("flops", 0.0),
          .math = math_of(given),
          .bytes = given.value("bytes", 0.0),
          .host_to_device = given.value("host_to_device", 0.0),
          .device_to_host = given.value("device_to_host", 0.0),
          .host_bytes = given.value("host_bytes", 0.0),
          .dependent_kernels = given.value("dependent_kernels", 0.0),
          .seconds = given.value("seconds", 0.0)};
}

// A list of the declared length, which is part of its type's constructor.
template <std::size_t count = 1>
Sizes sizes_of(const std::vector<Size>& all) {
  if constexpr (count < Sizes::capacity)
    if (all.size() > count) return sizes_of<count + 1>(all);
  Size list[count];
  std::copy_n(all.begin(), count, list);
  return Sizes{list};
}

}  // namespace

Declaration::Declaration(const json& given)
    : pair_{.teaches = keep(given.at("teaches")),
            .lesson = keep(given.at("lesson")),
            .make = &make_workload,
            .baseline = variant(given.at("baseline"), 0),
            .optimized = Variants{0}},
      cost_{cost_of(given.at("cost"))},
      returns_results_{given.at("returns_results").get<bool>()},
      digest_{.digest = keep(given.at("digest"))} {
  int number = 1;
  pair_.optimized = variants_of(given.at("optimized"), number);
  if (!given.at("controls").empty()) pair_.controls = variants_of(given["controls"], number);
  if (!given.at("libraries").empty()) pair_.libraries = variants_of(given["libraries"], number);
  pair_.device = one_of(given, "device", std::array{Device::gpu, Device::host});
  pair_.bound = one_of(given, "bound", std::array{Bound::memory, Bound::compute, Bound::latency, Bound::transfer, Bound::host});
  pair_.tolerance = tolerance_of(given.at("tolerance"));
  pair_.cache = one_of(given, "cache", std::array{Cache::cold, Cache::hot});
  pair_.start = one_of(given, "start", std::array{Start::released, Start::immediate});
  for (const json& each : given.at("buffers"))
    buffers_.push_back({.name = each.at("name").get<std::string>(),
                        .role = one_of(each, "role", roles),
                        .type = one_of(each, "type", types),
                        .element_bytes = each.at("element_bytes").get<std::size_t>(),
                        .count = each.at("count").get<std::size_t>(),
                        .constant = each.at("constant").get<bool>(),
                        .unordered = each.at("unordered").get<bool>()});
  declare_sizes(given.at("sizes"), given.at("case").get<std::string>());
  entry_ = {.chapter = keep(given.at("group")), .name = keep(given.at("name")), .source = keep(given.at("file")), .pair = &pair_};
  const std::vector<std::string> faults = pair::faults(entry_);
  if (!faults.empty()) throw base::Error{base::Exit::usage, fmt::format("{}", fmt::join(faults, "; "))};
}

// Each size has one value; the point is a case of its own where other points have other values.
void Declaration::declare_sizes(const json& sizes, const std::string& case_name) {
  if (sizes.size() > Sizes::capacity)
    throw base::Error{base::Exit::usage, fmt::format("there are {} sizes; {} is the most", sizes.size(), Sizes::capacity)};
  if (sizes.empty()) return;
  pair::SizeMap values;
  std::vector<Size> declared;
  for (const auto& [name, given] : sizes.items()) {
    const auto value = given.get<std::uint64_t>();
    declared.push_back({.name = keep(name), .full = value, .most = value, .scales = false});
    values.emplace(name, value);
  }
  pair_.sizes = sizes_of(declared);
  if (case_name.empty()) return;
  const Case cases[]{{.name = keep(case_name), .sizes = keep(pair::sizes_text(values))}};
  pair_.sweep = Cases{cases};
}

Variants Declaration::variants_of(const json& list, int& number) {
  if (list.size() > Variants::capacity)
    throw base::Error{base::Exit::usage,
                      fmt::format("there are {} variants of one kind; {} is the most", list.size(), Variants::capacity)};
  Variants variants{list.size()};
  for (std::size_t i = 0; i < list.size(); ++i) variants.items_[i] = variant(list[i], number++);
  return variants;
}

Variant Declaration::variant(const json& given, int number) {
  Variant variant{.name = keep(given.at("name")), .run = run_of(number), .prepare = prepare_of(number)};
  variant.changes_precision = given.at("changes_precision").get<bool>();
  if (given.contains("tolerance")) variant.tolerance = tolerance_of(given["tolerance"]);
  if (!given.at("computes_output").get<bool>()) variant.outputs = no_outputs;
  return variant;
}

}  // namespace aisp::foreign
