// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <aisp/check.hpp>
#include <aisp/dispatch.hpp>

#include <string>

namespace aisp::detail {

void not_compiled_for(std::string_view name, std::uint64_t value, std::initializer_list<std::uint64_t> compiled) {
  std::string list;
  for (const std::uint64_t& each : compiled) {
    const char* const before = &each == compiled.begin() ? "" : &each + 1 == compiled.end() ? " or " : ", ";
    list += fmt::format("{}{}", before, each);
  }
  throw Unsupported{fmt::format("{} must be {}, not {}; nothing else is compiled", name, list, value)};
}

}  // namespace aisp::detail
