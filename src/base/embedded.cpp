// SPDX-License-Identifier: Apache-2.0
#include "base/embedded.hpp"

namespace aisp::base {
namespace {

std::filesystem::path& named() {
  static std::filesystem::path executable;
  return executable;
}

}  // namespace

void embed(const std::filesystem::path& executable) { named() = executable; }
bool embedded() { return !named().empty(); }
std::string program() { return embedded() ? named().string() : "/proc/self/exe"; }

}  // namespace aisp::base
