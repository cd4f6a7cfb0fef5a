// SPDX-License-Identifier: Apache-2.0
#include "pair/sizes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "base/text.hpp"
#include "pair/size_lists.hpp"

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

}  // namespace aisp::pair
