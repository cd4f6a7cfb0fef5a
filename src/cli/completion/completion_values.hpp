// SPDX-License-Identifier: Apache-2.0
// Values that a shell may offer after an option, or as a command's argument.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace aisp::cli {

enum class Offer : std::uint8_t {
  nothing,   // numbers and names that only the user knows
  words,     // those that are listed
  targets,   // pairs and chapters of this aisp, beside the words; several with commas
  chapters,  // of this aisp
  runs,      // below artifacts
  files,
};

struct Values {
  Offer offer = Offer::nothing;
  std::vector<std::string> words;
};

bool takes_value(const CLI::Option& option);
Values values_of(const CLI::App& command, const CLI::Option& option);
// Returns the values of a command's positional arguments.
Values arguments_of(const CLI::App& command);

}  // namespace aisp::cli
