// SPDX-License-Identifier: Apache-2.0
// Flags and configuration file of the commands that run pairs.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "suite/settings/configuration.hpp"

namespace CLI {
class App;
}

namespace aisp::cli {

// Which pairs: `aisp run ch01:coalescing` and `aisp run --targets ch01:coalescing` are the same.
struct TargetFlags {
  std::vector<std::string> targets;  // with --targets
  std::vector<std::string> words;    // without
};

struct SuiteFlags : TargetFlags {
  std::map<std::string, std::vector<std::string>> values;  // setting -> what its flag was given
  std::map<std::string, std::string> switches;             // likewise: "true" without a value, empty when it was not given
  bool no_profile = false;
  std::vector<std::string> config_files;  // one at most
  std::string json;                       // file, or "-" for the standard output; empty: none
  bool quiet = false;
  std::string color = "auto";
  bool allow_skipped = false;
  std::vector<std::string> require;
  std::string rendezvous;  // HOST:PORT, or "none"; empty: as the launcher says
  std::string rendezvous_timeout = "5m";
};

// `flags` must outlive `app`.
void add_target_flags(CLI::App& app, TargetFlags& flags);
// `without`: settings that make no sense for the command. `flags` must outlive `app`.
void add_suite_flags(CLI::App& app, SuiteFlags& flags, const std::vector<std::string>& without = {});

// `configuration` (defaults, or the settings of a resumed run), then the configuration file (--config, else ./aisp.toml where
// there is one), then flags.
suite::Configuration make_configuration(const SuiteFlags& flags, suite::Configuration configuration = {});

// Tells which settings ./aisp.toml gave: nobody named that file, and with another scale or seed the results are others.
void note_standing_settings(const suite::Configuration& configuration);

// Both repeat and take commas. Throws base::Error for one that names nothing.
std::vector<std::string> target_list(const TargetFlags& flags);

}  // namespace aisp::cli
