// SPDX-License-Identifier: Apache-2.0
#include "peak/cache.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/system/files.hpp"
#include "evidence/json.hpp"

namespace aisp::peak {
namespace {

constexpr std::size_t longest_record_bytes = std::size_t{1} << 20;

std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n' || c == '\r') c = ' ';
  return text;
}

std::filesystem::path file_of(const std::filesystem::path& cache, const Key& key, std::string_view kind) {
  const std::string digest = base::sha256_hex(evidence::json_text(nlohmann::json(key)));
  return cache / "peak" / fmt::format("{}{}-{}.json", kind, key.of == key_of_host ? key_of_host : "gpu", digest.substr(0, 16));
}

template <class Kept>
void write(const std::filesystem::path& cache, const std::filesystem::path& file, const Kept& kept) {
  if (cache.empty()) throw base::Error{base::Exit::unfit, "no place for a cache: set HOME or XDG_CACHE_HOME"};
  base::write_atomically(file, evidence::json_text(nlohmann::json(kept), 2) + '\n');
}

// Returns what the file keeps; nothing where it cannot be read or is of another key.
template <class Kept>
std::optional<Kept> kept_in(const std::filesystem::path& cache, const std::filesystem::path& file, const Key& key) {
  if (cache.empty()) return std::nullopt;
  try {
    Kept kept = evidence::parse_json(base::read_file(file, longest_record_bytes), "JSON").get<Kept>();
    if (kept.key == key) return kept;
  } catch (const std::exception&) {
  }
  return std::nullopt;
}

}  // namespace

std::filesystem::path cache_file(const std::filesystem::path& cache, const Key& key) { return file_of(cache, key, ""); }
std::filesystem::path levels_file(const std::filesystem::path& cache, const Key& key) { return file_of(cache, key, "levels-"); }

Cached load(const std::filesystem::path& cache, const Key& key) {
  if (cache.empty()) return {};
  const std::filesystem::path file = cache_file(cache, key);
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return {};
  const auto unusable = [&](const std::string& why) {
    return Cached{std::nullopt,
                  fmt::format("{} is not a record of aisp peak ({}); its ceilings are not used", file.string(), one_line(why))};
  };
  try {
    const std::string text = base::read_file(file, longest_record_bytes);
    Record record = evidence::parse_json(text, "JSON").get<Record>();
    if (record.key != key) return unusable("it is of another machine");
    return {std::move(record), {}};
  } catch (const std::exception& error) {
    return unusable(error.what());
  }
}

void store(const std::filesystem::path& cache, const Record& record) { write(cache, cache_file(cache, record.key), record); }

std::filesystem::path fabric_file(const std::filesystem::path& cache, const Key& key) { return file_of(cache, key, "links-"); }

std::optional<Levels> load_levels(const std::filesystem::path& cache, const Key& key) {
  return kept_in<Levels>(cache, levels_file(cache, key), key);
}
std::optional<Fabric> load_fabric(const std::filesystem::path& cache, const Key& key) {
  return kept_in<Fabric>(cache, fabric_file(cache, key), key);
}

void store(const std::filesystem::path& cache, const Levels& levels) { write(cache, levels_file(cache, levels.key), levels); }
void store(const std::filesystem::path& cache, const Fabric& fabric) { write(cache, fabric_file(cache, fabric.key), fabric); }

}  // namespace aisp::peak
