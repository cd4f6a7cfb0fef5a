// SPDX-License-Identifier: Apache-2.0
// A run as it may be shown to anybody.
#pragma once
#include <string>
#include <vector>

#include "evidence/comparison/history.hpp"
#include "evidence/run_record.hpp"

namespace aisp::report {

// Takes names of places out of texts: absolute paths, UUIDs of GPUs, IP addresses, and the given words where they stand alone;
// out of the run's name, wherever it stands, also where one of the words is a part of it.
class Redactor {
 public:
  explicit Redactor(std::vector<std::string> words, std::string run_id = {});
  std::string operator()(const std::string& text) const;
  std::string name(const std::string& run_id) const;

 private:
  std::vector<std::string> words_;
  std::string run_id_;
};

// Finds in all texts what names the machine that `run` was measured on, and the users whose homes its manifest names. `users`:
// the names of whoever reports.
Redactor redactor_for(const evidence::RunRecord& run, const std::vector<std::string>& users);

// Without host name, environment, command line, branch, UUIDs and bus addresses; paths and the redactor's words are taken out of
// every text. Measurements stay as they are.
evidence::RunRecord public_copy(const evidence::RunRecord& run, const Redactor& redact);

// Does the same for the history of other runs on that machine.
std::vector<evidence::Series> public_copy(std::vector<evidence::Series> history, const Redactor& redact);

}  // namespace aisp::report
