// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/system/terminal.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace aisp::cli {

// Throws base::Error (usage) for anything but auto, always and never.
base::Color color_flag(const std::string& text);

// An option that takes one value, `type` in the help, and may be given again for a further one. `to` must outlive `app`.
CLI::Option* add_repeated(CLI::App& app, const std::string& flag, std::vector<std::string>& to, const char* type,
                          const std::string& help);

// Options with numbers, read as those of settings are: CLI11's own reader takes "" for zero and speaks of conversions. `to` must
// outlive `app`.
CLI::Option* add_number(CLI::App& app, const std::string& flag, double& to, const std::string& help);
CLI::Option* add_number(CLI::App& app, const std::string& flag, std::optional<double>& to, const std::string& help);
// A whole number, at every time that the flag is given.
CLI::Option* add_numbers(CLI::App& app, const std::string& flag, std::vector<int>& to, const std::string& help);

}  // namespace aisp::cli
