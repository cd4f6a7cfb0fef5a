// SPDX-License-Identifier: Apache-2.0
// What spies have in common: they remember what they saw at first, and throw when a later run looks otherwise.
#pragma once
#include <aisp/launch.hpp>

#include <stdexcept>
#include <string>

#include <unistd.h>

namespace aisp::selftest {

template <class Doubling>
class Spying : public Doubling {
 public:
  using Doubling::Doubling;
  void on_the_environment(Launch& launch) {
    std::string all;
    for (char** variable = environ; *variable != nullptr; ++variable) all.append(*variable).push_back('\n');
    look(launch, all);
  }

 protected:
  void look(Launch& launch, const std::string& now) {
    if (seen_.empty()) seen_ = now;
    if (now != seen_) throw std::runtime_error{"this run looks unlike the first: " + now + ", it was " + seen_};
    this->doubled(launch);
  }

 private:
  std::string seen_;
};

}  // namespace aisp::selftest
