// SPDX-License-Identifier: Apache-2.0
#include "evidence/names.hpp"

#include <algorithm>

namespace aisp::evidence {

bool is_plain(std::string_view name) {
  return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

bool is_target(std::string_view target) {
  const std::size_t colon = target.find(':');
  return colon != std::string_view::npos && is_plain(target.substr(0, colon)) && is_plain(target.substr(colon + 1));
}

}  // namespace aisp::evidence
