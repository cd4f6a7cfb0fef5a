// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <string>

namespace aisp::run {

// Receives what the child says; the real one writes JSON lines to the parent's pipe.
struct Reporter {
  std::function<void(const std::string& line)> send;
};

}  // namespace aisp::run
