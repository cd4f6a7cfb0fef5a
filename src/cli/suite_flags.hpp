// SPDX-License-Identifier: Apache-2.0
// Flags and configuration file of the commands that run pairs.
#pragma once
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "evidence/result.hpp"
#include "machine/machine.hpp"
#include "suite/selection.hpp"
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

// --require: what must have run for a run to be worth its exit status 0, or what a machine must have.
// Adds the flag. `given` must outlive `app`.
void add_require(CLI::App& app, std::vector<std::string>& given, const char* help);

class Requirements {
 public:
  // Each is "gpu", a number of pairs, or a key of hardware; several may stand between commas. Throws base::Error (usage) for what
  // is none of them.
  explicit Requirements(const std::vector<std::string>& given);

  // Throws base::Error (unfit) for what this machine cannot meet, before anything runs.
  // `gpus`: ordinals of those that may be used.
  void demand_possible(const machine::Machine& machine, const std::vector<int>& gpus) const;
  // Throws base::Error (unfit) for what was not met.
  void demand_met(const evidence::SuiteResult& suite, const evidence::Manifest& manifest) const;
  // Throws base::Error (usage) where a number of pairs is required of a command that runs none.
  void demand_no_pairs() const;

 private:
  bool gpu_ = false;
  std::size_t pairs_ = 0;
  std::vector<std::string> hardware_;
};

// Throws base::Error (nothing) where every result is skipped.
void demand_anything_ran(const evidence::SuiteResult& suite);

// Prints the answer of `aisp list-targets` and `aisp run --list`: a table, and with `json` an array to that file, or for "-" the
// array alone.
void print_targets(const suite::Selection& selection, const std::string& json);

// The sizes and the cases that a pair declares, as list-targets and explain show them.
nlohmann::json sizes_json(const Pair& pair);
nlohmann::json cases_json(const Cases& cases);

}  // namespace aisp::cli
