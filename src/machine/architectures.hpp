// SPDX-License-Identifier: Apache-2.0
// For which GPUs an executable has code. `built` is the list it was built for, as CMake writes it, with commas:
// "80-real,90a-real". An empty list, or one with words such as "native", tells nothing, and every answer is yes.
#pragma once
#include <string>
#include <string_view>

namespace aisp::machine {

// Why something cannot be, one plain clause, and the way round it.
struct Obstacle {
  std::string reason, advice;
  std::string text() const { return advice.empty() ? reason : reason + "; " + advice; }
};

// Any code: of the same major version and no newer, or PTX that the driver translates.
bool has_code(std::string_view built, int sm);
// Code with the instructions of this architecture (100a) or its family (100f) alone.
bool has_specific_code(std::string_view built, int sm);

// "this executable has no code for sm_100a (it has 90a-real)", and how to build one that has.
Obstacle lacking_code(std::string_view built, int sm);

}  // namespace aisp::machine
