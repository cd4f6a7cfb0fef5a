// SPDX-License-Identifier: Apache-2.0
// Errors that are concentrated in a part of an output, where the norm of everything hides them.
#pragma once
#include <cstdint>
#include <string>

#include "pair/memory/snapshot.hpp"

namespace aisp::verify {

// Tiles that are drawn of an output, and consecutive elements of each.
inline constexpr std::size_t tiles = 256, tile_elements = 256;
// The part of an element's limit that the root mean square error of a tile may be; where the pair has not set that limit, twice
// the limit of the norm. If errors are independent, and as large as that norm may be, a tile's mean square varies by 1/18 where
// they are uniform, by 1/11 where they are normal, and by 0.3 where one element of 25 has all of the error, the fewest that the
// limit of an element leaves. Four times as much is 53, 34 and nine deviations.
inline constexpr double most_of_element = 0.4;

// Compares tiles of `found`, drawn by `seed`, with the same elements of `reference`, and describes the farthest; empty if none
// exceeds `most`. A tile's error is relative to its own root mean square or, if this is smaller, to `rms` of the reference.
std::string concentrated_error(const pair::Snapshot& found, const pair::Snapshot& reference, double rms, double most,
                               std::uint64_t seed);

}  // namespace aisp::verify
