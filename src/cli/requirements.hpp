// SPDX-License-Identifier: Apache-2.0
// --require: what must have run for a run to be worth its exit status 0, or what a machine must have.
#pragma once
#include <string>
#include <vector>

#include "evidence/result.hpp"
#include "machine/machine.hpp"

namespace CLI {
class App;
}

namespace aisp::cli {

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

}  // namespace aisp::cli
