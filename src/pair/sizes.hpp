// SPDX-License-Identifier: Apache-2.0
// Values of --size for a pair: one, or several as a list or a range that multiplies or adds.
#pragma once
#include <aisp/pair.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace aisp::pair {

using SizeMap = std::map<std::string, std::uint64_t>;

// Parses "m=4096,n=4096", one value of each; throws std::invalid_argument that names valid input.
SizeMap parse_sizes(std::string_view text);
std::string sizes_text(const SizeMap& sizes);

// Returns what is wrong with these sizes for this pair, one clause; nothing when it takes them all.
std::optional<std::string> wrong_size(const Pair& pair, const SizeMap& sizes);

// Returns `full` times the scale, rounded down to a multiple, at least one.
std::uint64_t scaled(std::uint64_t full, std::uint64_t multiple, double scale);

// Returns each declared size as a run with these set and this scale uses it: none below its least. Throws std::invalid_argument
// for sizes that wrong_size() rejects.
SizeMap sizes_in_effect(const Pair& pair, const SizeMap& set, double scale);

// Each name with its values in their order, without duplicates.
using SizeLists = std::map<std::string, std::vector<std::uint64_t>>;

// The most points of one run: more do not make a readable curve, and take longer than a run should.
inline constexpr std::size_t most_points = 256;

// Parses "m=1024:16384:*2,k=64,128,n=4096"; throws std::invalid_argument that names valid input.
SizeLists parse_size_lists(std::string_view text);
// Returns such a text with ranges written out.
std::string size_lists_text(const SizeLists& lists);

// Returns the number of combinations; at least 1, and safe against overflow.
std::size_t grid_size(const SizeLists& lists);
// Returns all combinations, the values of the last name changing fastest.
std::vector<SizeMap> grid_of(const SizeLists& lists);
// Returns "k_64_m_1024": the values of those sizes that have several; empty if none has.
std::string point_name(const SizeLists& lists, const SizeMap& point);

}  // namespace aisp::pair
