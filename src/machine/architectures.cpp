// SPDX-License-Identifier: Apache-2.0
#include "machine/architectures.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

namespace aisp::machine {
namespace {

struct ArchitectureEntry {
  int sm = 0;
  char kind = ' ';  // 'a': this architecture alone, 'f': its family from here on
  bool machine_code = true, ptx = true;
};

std::optional<ArchitectureEntry> parse(std::string_view word) {
  ArchitectureEntry entry;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), entry.sm);
  if (error != std::errc{}) return std::nullopt;
  word.remove_prefix(static_cast<std::size_t>(end - word.data()));
  if (!word.empty() && (word.front() == 'a' || word.front() == 'f')) {
    entry.kind = word.front();
    word.remove_prefix(1);
  }
  if (word == "-real") entry.ptx = false;
  else if (word == "-virtual") entry.machine_code = false;
  else if (!word.empty()) return std::nullopt;
  return entry;
}

// Nothing when the list does not tell.
std::optional<std::vector<ArchitectureEntry>> parse_list(std::string_view built) {
  std::vector<ArchitectureEntry> entries;
  while (!built.empty()) {
    const std::size_t comma = std::min(built.find(','), built.size());
    const std::optional<ArchitectureEntry> entry = parse(built.substr(0, comma));
    if (!entry) return std::nullopt;
    entries.push_back(*entry);
    built.remove_prefix(std::min(comma + 1, built.size()));
  }
  if (entries.empty()) return std::nullopt;
  return entries;
}

bool same_family(const ArchitectureEntry& entry, int sm) { return entry.sm / 10 == sm / 10 && entry.sm <= sm; }

bool runs_on(const ArchitectureEntry& entry, int sm) {
  if (entry.kind == 'a') return entry.sm == sm;
  if (entry.kind == 'f') return same_family(entry, sm);
  return (entry.machine_code && same_family(entry, sm)) || (entry.ptx && entry.sm <= sm);
}

}  // namespace

bool has_code(std::string_view built, int sm) {
  const auto entries = parse_list(built);
  return !entries ||
         std::any_of(entries->begin(), entries->end(), [sm](const ArchitectureEntry& entry) { return runs_on(entry, sm); });
}

bool has_specific_code(std::string_view built, int sm) {
  const auto entries = parse_list(built);
  return !entries || std::any_of(entries->begin(), entries->end(),
                                 [sm](const ArchitectureEntry& entry) { return entry.kind != ' ' && runs_on(entry, sm); });
}

Obstacle lacking_code(std::string_view built, int sm) {
  const std::string architecture = std::to_string(sm) + (sm >= 90 ? "a" : "");
  return {"this executable has no code for sm_" + architecture + " (it has " + std::string{built} + ")",
          "build one with cmake --preset all-architectures, or with -DAISP_CUDA_ARCHITECTURES=" + architecture + "-real"};
}

}  // namespace aisp::machine
