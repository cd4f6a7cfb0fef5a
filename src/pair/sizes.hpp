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

// "m=4096,n=4096", one value of each; throws std::invalid_argument that says what would be right.
SizeMap parse_sizes(std::string_view text);
std::string sizes_text(const SizeMap& sizes);

// Returns what is wrong with these sizes for this pair, one clause; nothing when it takes them all.
std::optional<std::string> wrong_size(const Pair& pair, const SizeMap& sizes);

// `full` times the scale, rounded down to a multiple, at least one.
std::uint64_t scaled(std::uint64_t full, std::uint64_t multiple, double scale);

// Returns each declared size as a run with these set and this scale uses it: none below its least. Throws std::invalid_argument
// for sizes that wrong_size() rejects.
SizeMap sizes_in_effect(const Pair& pair, const SizeMap& set, double scale);

// Each name with its values in their order; none of them is there twice.
using SizeLists = std::map<std::string, std::vector<std::uint64_t>>;

// The most points of one run: more make no curve that anybody reads, and take longer than a run should.
inline constexpr std::size_t most_points = 256;

// "m=1024:16384:*2,k=64,128,n=4096"; throws std::invalid_argument that says what would be right.
SizeLists parse_size_lists(std::string_view text);
// The same with ranges written out.
std::string size_lists_text(const SizeLists& lists);

// How many combinations there are; never less than 1, and never wrong because the product is too large.
std::size_t grid_size(const SizeLists& lists);
// All of them, the values of the last name changing fastest.
std::vector<SizeMap> grid_of(const SizeLists& lists);
// "k_64_m_1024": the values of those sizes that have several; empty where none has.
std::string point_name(const SizeLists& lists, const SizeMap& point);

}  // namespace aisp::pair
