// SPDX-License-Identifier: Apache-2.0
// Everything that reads what others wrote, by the name of its folder of seeds. A reader either takes the text, and then what
// comes after it must cope with the values, or refuses it with one clear line; anything else is a finding and aborts.
#pragma once
#include <span>
#include <string_view>

namespace aisp::fuzz {

struct Reader {
  std::string_view name;
  void (*read)(std::string_view text);
};
std::span<const Reader> readers();

// Runs one; true when the text was taken. Aborts, with the reason on stderr, for an error that is not as errors must be.
bool feed(const Reader& reader, std::string_view text);

}  // namespace aisp::fuzz
