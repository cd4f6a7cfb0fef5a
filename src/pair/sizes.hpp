// SPDX-License-Identifier: Apache-2.0
// What --size may say of a pair.
#pragma once
#include <aisp/pair.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace aisp::pair {

using SizeMap = std::map<std::string, std::uint64_t>;

// "m=4096,n=4096", one value of each; throws std::invalid_argument that says what would be right.
SizeMap parse_sizes(std::string_view text);
std::string sizes_text(const SizeMap& sizes);

// What is wrong with these sizes for this pair, one clause; nothing when it takes them all.
std::optional<std::string> wrong_size(const Pair& pair, const SizeMap& sizes);

// `full` times the scale, rounded down to a multiple, at least one.
std::uint64_t scaled(std::uint64_t full, std::uint64_t multiple, double scale);

// Of each declared size, what a run with these set and this scale uses: none below its least. Throws std::invalid_argument for
// what wrong_size() says.
SizeMap sizes_in_effect(const Pair& pair, const SizeMap& set, double scale);

}  // namespace aisp::pair
