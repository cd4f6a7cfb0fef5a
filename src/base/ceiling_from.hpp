// SPDX-License-Identifier: Apache-2.0
// The source of a ceiling, the best first.
#pragma once
#include <cstdint>

#include "base/words.hpp"

namespace aisp::base {

// Measured on this very GPU or host; computed from the chip's units and its highest clock, or by the pair's own arithmetic;
// recorded of another GPU of this model; guessed as a part of a theoretical peak.
enum class CeilingFrom : std::uint8_t { measured, computed, recorded, guess };
constexpr Words<4> words_of(CeilingFrom) { return {{"measured", "computed", "recorded", "guess"}}; }

}  // namespace aisp::base
