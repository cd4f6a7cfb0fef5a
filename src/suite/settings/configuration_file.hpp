// SPDX-License-Identifier: Apache-2.0
// aisp.toml: settings by their names, in a table [run] or in none.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "suite/settings/configuration.hpp"

namespace aisp::suite {

struct FileSetting {
  std::string name;  // with '-', as the flag has it
  std::vector<std::string> values;
  int line = 0;
};

// Throws base::Error (usage), "SOURCE:LINE: ...", for anything else and for a setting that comes twice.
std::vector<FileSetting> parse_settings(std::string_view text, const std::string& source);

// Applies all settings or none.
void apply_text(Configuration& configuration, std::string_view text, const std::string& source);
void apply_file(Configuration& configuration, const std::filesystem::path& file);

}  // namespace aisp::suite
