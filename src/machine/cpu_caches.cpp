// SPDX-License-Identifier: Apache-2.0
#include "machine/cpu_caches.hpp"

#include <algorithm>
#include <tuple>

#include "base/text.hpp"
#include "machine/host.hpp"

namespace aisp::machine {
namespace {

// "48K", "32M"
std::uint64_t size_bytes(std::string_view text) {
  const int shift = text.ends_with("K") ? 10 : text.ends_with("M") ? 20 : 0;
  if (shift > 0) text.remove_suffix(1);
  return base::parse_number<std::uint64_t>(text).value_or(0) << shift;
}

// Adds a cache, or another instance to one that has the same level, type and size.
void add_cache(std::vector<CpuCache>& caches, int level, const std::filesystem::path& folder, const std::string& cpus) {
  CpuCache found{level, read_word(folder / "type"), size_bytes(read_word(folder / "size")), {}};
  auto same = std::find_if(caches.begin(), caches.end(), [&](const CpuCache& other) {
    return std::tie(other.level, other.type, other.bytes) == std::tie(found.level, found.type, found.bytes);
  });
  if (same == caches.end()) same = caches.insert(caches.end(), std::move(found));
  if (std::find(same->shared_by.begin(), same->shared_by.end(), cpus) == same->shared_by.end()) same->shared_by.push_back(cpus);
}

}  // namespace

std::vector<CpuCache> read_cpu_caches(const std::filesystem::path& root) {
  std::vector<CpuCache> caches;
  for (const int cpu : parse_cpu_list(read_word(root / "sys/devices/system/cpu/online"))) {
    const auto folder = root / "sys/devices/system/cpu" / ("cpu" + std::to_string(cpu)) / "cache";
    std::error_code error;
    for (std::filesystem::directory_iterator entry{folder, error}, end; !error && entry != end; entry.increment(error)) {
      const auto level = base::parse_number<int>(read_word(entry->path() / "level"));
      if (!level) continue;
      const std::string sharers = read_word(entry->path() / "shared_cpu_list");
      add_cache(caches, *level, entry->path(), sharers.empty() ? std::to_string(cpu) : sharers);
    }
  }
  std::stable_sort(caches.begin(), caches.end(),
                   [](const CpuCache& a, const CpuCache& b) { return std::tie(a.level, a.type) < std::tie(b.level, b.type); });
  return caches;
}

std::uint64_t last_level_cache_bytes(const std::filesystem::path& root) {
  const std::vector<CpuCache> caches = read_cpu_caches(root);
  return caches.empty() ? 0 : caches.back().bytes * caches.back().shared_by.size();
}

}  // namespace aisp::machine
