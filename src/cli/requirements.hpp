// SPDX-License-Identifier: Apache-2.0
// --require: what must have run for a run to be worth its exit status 0.
#pragma once
#include <string>
#include <vector>

#include "evidence/result.hpp"
#include "suite/task.hpp"

namespace aisp::cli {

class Requirements {
 public:
  // Each is "gpu", a number of pairs, or a key of hardware; several may stand between commas. Throws base::Error (usage) for what
  // is none of them.
  explicit Requirements(const std::vector<std::string>& given);

  // Throws base::Error (unfit) for what this machine cannot meet, before anything runs.
  void demand_possible(const suite::Task& task) const;
  // Throws base::Error (unfit) for what was not met.
  void demand_met(const evidence::SuiteResult& suite, const evidence::Manifest& manifest) const;

 private:
  bool gpu_ = false;
  std::size_t pairs_ = 0;
  std::vector<std::string> hardware_;
};

// Throws base::Error (nothing) where every result is skipped.
void demand_anything_ran(const evidence::SuiteResult& suite);

}  // namespace aisp::cli
