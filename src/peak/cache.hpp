// SPDX-License-Identifier: Apache-2.0
// Records of earlier measurements: one file a key, below base::cache_folder().
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "peak/fabric/fabric.hpp"
#include "peak/figures.hpp"
#include "peak/levels/levels.hpp"

namespace aisp::peak {

struct Cached {
  std::optional<Record> record;
  std::string warning;  // there is a file, but it cannot be used: one line that names it
};

std::filesystem::path cache_file(const std::filesystem::path& cache, const Key& key);
// Nothing at all for an empty `cache`. Never throws: what cannot be read is measured again.
Cached load(const std::filesystem::path& cache, const Key& key);
// The new record or the old one, never a part. Throws base::Error.
void store(const std::filesystem::path& cache, const Record& record);

// The same of memory levels, which have a file of their own. What cannot be read is measured again without a word: no command
// goes by it.
std::filesystem::path levels_file(const std::filesystem::path& cache, const Key& key);
std::optional<Levels> load_levels(const std::filesystem::path& cache, const Key& key);
void store(const std::filesystem::path& cache, const Levels& levels);

// Likewise what is between the GPUs of this machine, as it was measured last.
std::filesystem::path fabric_file(const std::filesystem::path& cache, const Key& key);
std::optional<Fabric> load_fabric(const std::filesystem::path& cache, const Key& key);
void store(const std::filesystem::path& cache, const Fabric& fabric);

}  // namespace aisp::peak
