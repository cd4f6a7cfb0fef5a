// SPDX-License-Identifier: Apache-2.0
// A run as it may be shown to anybody.
#pragma once
#include <string>
#include <vector>

#include "evidence/run_record.hpp"

namespace aisp::report {

// Takes names of places out of texts: absolute paths, UUIDs of GPUs, and the given words where they stand alone.
class Redactor {
 public:
  explicit Redactor(std::vector<std::string> words);
  std::string operator()(const std::string& text) const;

 private:
  std::vector<std::string> words_;
};

// What names the machine that `run` was measured on, to be looked for in all texts. `users`: of whoever reports.
Redactor redactor_for(const evidence::RunRecord& run, const std::vector<std::string>& users);

// Without host name, environment, command line, branch, UUIDs and bus addresses; paths and the redactor's words are taken out of
// every text. Measurements stay as they are.
evidence::RunRecord public_copy(const evidence::RunRecord& run, const Redactor& redact);

}  // namespace aisp::report
