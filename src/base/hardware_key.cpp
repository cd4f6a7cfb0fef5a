// SPDX-License-Identifier: Apache-2.0
#include "base/hardware_key.hpp"

#include <algorithm>
#include <array>
#include <map>

#include "base/text.hpp"

namespace aisp::base {
namespace {

// A folder's name has an end, and a driver's names are shorter.
constexpr std::size_t longest_name = 128;

bool names_the_maker(std::string_view word) {
  constexpr std::array<std::string_view, 3> words{"nvidia", "tesla", "geforce"};
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Letters and digits; a blank for all else, but for a MIG profile's "+me" and "-me", with and without media engines.
std::string spaced(std::string_view name) {
  std::string text;
  for (const char c : lower(name.substr(0, longest_name))) {
    const bool kept = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    text += kept ? std::string{c} : std::string{c == '+' ? " plus " : " "};
  }
  return text;
}

}  // namespace

std::string gpu_key(std::string_view name) {
  std::vector<std::string> words;
  for (const std::string& word : split(spaced(name), ' '))
    if (!word.empty() && !names_the_maker(word)) words.push_back(word);
  return words.empty() ? "gpu" : join(words, "_").substr(0, longest_name);
}

std::string hardware_key(const std::vector<std::string>& gpu_names) {
  std::map<std::string, std::size_t> counts;
  for (const std::string& name : gpu_names) ++counts[gpu_key(name)];
  std::vector<std::string> parts;
  for (const auto& [key, count] : counts) parts.push_back((count > 1 ? std::to_string(count) + "x_" : std::string{}) + key);
  return join(parts, "_and_");
}

}  // namespace aisp::base
