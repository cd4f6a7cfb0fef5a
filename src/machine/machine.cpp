// SPDX-License-Identifier: Apache-2.0
#include "machine/machine.hpp"

#include <algorithm>
#include <array>
#include <map>

#include "base/text.hpp"

namespace aisp::machine {
namespace {

// Words that say nothing about speed: maker, brand, memory technology, form factor.
bool is_marketing(const std::string& word) {
  constexpr std::array words = {"nvidia", "tesla", "geforce", "quadro", "graphics", "device", "gpu"};
  return std::find(words.begin(), words.end(), word) != words.end() || word.starts_with("hbm") || word.starts_with("sxm");
}

}  // namespace

std::string short_name(const Gpu& gpu) {
  std::string spaced = base::lower(gpu.name);
  for (char& c : spaced) {
    const bool kept = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.';
    if (!kept) c = ' ';
  }
  std::vector<std::string> words;
  for (const std::string& word : base::split(spaced, ' '))
    if (!word.empty() && !is_marketing(word)) words.push_back(word);
  return words.empty() ? "gpu" : base::join(words, "_");
}

std::string hardware_key(const Machine& machine, const std::vector<int>& gpus) {
  std::map<std::string, int> counts;
  for (const Gpu& gpu : machine.gpus)
    if (std::find(gpus.begin(), gpus.end(), gpu.ordinal) != gpus.end()) ++counts[short_name(gpu)];
  std::vector<std::string> parts;
  for (const auto& [name, count] : counts) parts.push_back((count > 1 ? std::to_string(count) + "x_" : std::string{}) + name);
  return parts.empty() ? "host" : base::join(parts, "+");
}

const Gpu* find_gpu(const Machine& machine, const std::string& uuid) {
  for (const Gpu& gpu : machine.gpus)
    if (gpu.uuid == uuid) return &gpu;
  return nullptr;
}

}  // namespace aisp::machine
