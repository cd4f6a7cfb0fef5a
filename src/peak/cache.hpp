// SPDX-License-Identifier: Apache-2.0
// Earlier measurements: Record, Levels and Fabric, each in a file by its key, below base::cache_folder().
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "peak/fabric/fabric.hpp"
#include "peak/figures.hpp"
#include "peak/levels/levels.hpp"

namespace aisp::peak {

template <class Kept>
struct Cached {
  std::optional<Kept> kept;
  std::string warning;  // there is a file, but it cannot be used: one line that names it
};

template <class Kept>
std::filesystem::path cache_file(const std::filesystem::path& cache, const Key& key);
// Returns nothing at all for an empty `cache`. Never throws: what cannot be read is measured again.
template <class Kept>
Cached<Kept> load(const std::filesystem::path& cache, const Key& key);
// Writes the new record or keeps the old one, never a part. Throws base::Error.
template <class Kept>
void store(const std::filesystem::path& cache, const Kept& kept);

}  // namespace aisp::peak
