// SPDX-License-Identifier: Apache-2.0
// How a parent asks a child of the same program about the driver, and how that one answers.
#pragma once
#include <nlohmann/json.hpp>

#include <string>

namespace aisp::machine {

struct ProbeAnswer {
  nlohmann::json json;  // an object, unless `error` says why not
  std::string error, advice;
};

// Runs `executable COMMAND` and reads its answer for at most limit_s.
ProbeAnswer ask_child(const std::string& command, double limit_s, const std::string& executable);

// In the child; the exit status.
int write_answer(int fd, const nlohmann::json& answer);

}  // namespace aisp::machine
