// SPDX-License-Identifier: Apache-2.0
#include "pair/sizes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "base/text.hpp"

namespace aisp::pair {
namespace {

std::string known_sizes(const Pair& pair) {
  std::vector<std::string> known;
  for (const Size& size : pair.sizes) known.emplace_back(size.name);
  return known.empty() ? "it declares no sizes" : fmt::format("its sizes are {}", base::join(known, ", "));
}

std::optional<std::string> wrong_value(const Size& size, std::uint64_t value) {
  if (value < least_value(size) || value > size.most)
    return fmt::format("{} {} is not from {} to {}", size.name, value, least_value(size), size.most);
  if (value % size.multiple != 0) {
    const std::uint64_t below = value / size.multiple * size.multiple, above = below + size.multiple;
    return fmt::format("{} {} is not a multiple of {}; {} is the nearest", size.name, value, size.multiple,
                       (value - below < above - value && below > 0) || above > size.most ? below : above);
  }
  return std::nullopt;
}

}  // namespace

SizeMap parse_sizes(std::string_view text) {
  SizeMap sizes;
  for (const auto& [name, values] : parse_size_lists(text)) {
    if (values.size() != 1)
      throw std::invalid_argument{fmt::format("must be one value of {}, as in {}={}", name, name, values.front())};
    sizes.emplace(name, values.front());
  }
  return sizes;
}

std::string sizes_text(const SizeMap& sizes) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : sizes) parts.push_back(fmt::format("{}={}", name, value));
  return base::join(parts, ",");
}

std::optional<std::string> wrong_size(const Pair& pair, const SizeMap& sizes) {
  for (const auto& [name, value] : sizes) {
    const auto* const found =
        std::find_if(pair.sizes.begin(), pair.sizes.end(), [&name = name](const Size& size) { return size.name == name; });
    if (found == pair.sizes.end()) return fmt::format("there is no size '{}'; {}", base::one_line(name, 40), known_sizes(pair));
    if (auto problem = wrong_value(*found, value)) return problem;
  }
  return std::nullopt;
}

std::uint64_t scaled(std::uint64_t full, std::uint64_t multiple, double scale) {
  const auto wanted = static_cast<std::uint64_t>(std::floor(static_cast<double>(full) * scale));
  return std::max(wanted / multiple, std::uint64_t{1}) * multiple;
}

SizeMap sizes_in_effect(const Pair& pair, const SizeMap& set, double scale) {
  if (const auto problem = wrong_size(pair, set)) throw std::invalid_argument{*problem};
  SizeMap sizes;
  for (const Size& size : pair.sizes) {
    const auto given = set.find(std::string{size.name});
    const bool shrinks = size.scales && size.full > 0;
    sizes[std::string{size.name}] = given != set.end() ? given->second
                                    : shrinks          ? std::max(scaled(size.full, size.multiple, scale), least_value(size))
                                                       : size.full;
  }
  return sizes;
}

namespace {

constexpr const char* form =
    "must be NAME=N, a list NAME=N,N,... or a range NAME=FIRST:LAST:*K or NAME=FIRST:LAST:+K, as in m=4096 or "
    "m=1024:16384:*2, each name once and N a whole number";

std::uint64_t number_of(std::string_view text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range) throw std::invalid_argument{"must be a number below 2^64"};
  if (error != std::errc{} || stop != end) throw std::invalid_argument{form};
  return value;
}

struct SizeRange {
  std::uint64_t first, last, step;
  bool multiplies;

  // Whether the range has another value after this one.
  bool goes_on(std::uint64_t value) const { return multiplies ? value <= last / step : value <= last && last - value >= step; }
  std::uint64_t after(std::uint64_t value) const { return multiplies ? value * step : value + step; }
};

SizeRange range_of(const std::vector<std::string>& parts, const std::string& text) {
  if (parts.size() != 3 || parts[2].size() < 2 || (parts[2][0] != '*' && parts[2][0] != '+')) throw std::invalid_argument{form};
  const SizeRange range{number_of(parts[0]), number_of(parts[1]), number_of(std::string_view{parts[2]}.substr(1)),
                        parts[2][0] == '*'};
  if (range.first > range.last) throw std::invalid_argument{fmt::format("has an empty range: {} begins above its end", text)};
  if (range.step < (range.multiplies ? 2u : 1u))
    throw std::invalid_argument{fmt::format("has a range without an end: {} must multiply by 2 or add 1 at least", text)};
  if (range.multiplies && range.first == 0)
    throw std::invalid_argument{fmt::format("has a range without an end: {} multiplies 0", text)};
  return range;
}

// Adds the values of "64" or "64:1024:*2".
void add_values(const std::string& name, const std::string& text, std::vector<std::uint64_t>& values) {
  const auto add = [&](std::uint64_t value) {
    if (std::ranges::find(values, value) != values.end())
      throw std::invalid_argument{fmt::format("has {} twice among the values of {}", value, name)};
    if (values.size() == most_points)
      throw std::invalid_argument{fmt::format("has more than {} values of {}; take fewer, or a longer step", most_points, name)};
    values.push_back(value);
  };
  if (text.find(':') == std::string::npos) return add(number_of(text));
  const SizeRange range = range_of(base::split(text, ':'), text);
  std::uint64_t value = range.first;
  for (add(value); range.goes_on(value); add(value)) value = range.after(value);
}

}  // namespace

SizeLists parse_size_lists(std::string_view text) {
  SizeLists lists;
  auto last = lists.end();
  for (const std::string& part : base::split(text, ',')) {
    const std::size_t equals = part.find('=');
    if (equals == 0 || (equals == std::string::npos && last == lists.end())) throw std::invalid_argument{form};
    if (equals != std::string::npos) {
      const auto [place, is_new] = lists.emplace(part.substr(0, equals), std::vector<std::uint64_t>{});
      if (!is_new) throw std::invalid_argument{form};
      last = place;
    }
    add_values(last->first, equals == std::string::npos ? part : part.substr(equals + 1), last->second);
  }
  if (lists.empty()) throw std::invalid_argument{form};
  return lists;
}

std::string size_lists_text(const SizeLists& lists) {
  std::vector<std::string> parts;
  for (const auto& [name, values] : lists) parts.push_back(fmt::format("{}={}", name, fmt::join(values, ",")));
  return base::join(parts, ",");
}

std::size_t grid_size(const SizeLists& lists) {
  std::size_t count = 1;
  for (const auto& [name, values] : lists)
    count = values.size() > std::numeric_limits<std::size_t>::max() / count ? std::numeric_limits<std::size_t>::max()
                                                                            : count * values.size();
  return count;
}

std::vector<SizeMap> grid_of(const SizeLists& lists) {
  std::vector<SizeMap> points{{}};
  for (const auto& [name, values] : lists) {
    std::vector<SizeMap> longer;
    for (const SizeMap& point : points)
      for (const std::uint64_t value : values) longer.emplace_back(point)[name] = value;
    points = std::move(longer);
  }
  return points;
}

std::string point_name(const SizeLists& lists, const SizeMap& point) {
  std::vector<std::string> parts;
  for (const auto& [name, values] : lists)
    if (values.size() > 1) parts.push_back(fmt::format("{}_{}", name, point.at(name)));
  return base::join(parts, "_");
}

}  // namespace aisp::pair
