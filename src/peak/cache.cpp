// SPDX-License-Identifier: Apache-2.0
#include "peak/cache.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/system/files.hpp"
#include "base/text.hpp"
#include "evidence/json.hpp"

namespace aisp::peak {
namespace {

constexpr std::size_t longest_record_bytes = std::size_t{1} << 20;

template <class Kept>
constexpr std::string_view prefix = "";
template <>
constexpr std::string_view prefix<Levels> = "levels-";
template <>
constexpr std::string_view prefix<Fabric> = "links-";

}  // namespace

template <class Kept>
std::filesystem::path cache_file(const std::filesystem::path& cache, const Key& key) {
  const std::string digest = base::sha256_hex(evidence::json_text(nlohmann::json(key)));
  return cache / "peak" /
         fmt::format("{}{}-{}.json", prefix<Kept>, key.of == key_of_host ? key_of_host : "gpu", digest.substr(0, 16));
}

template <class Kept>
Cached<Kept> load(const std::filesystem::path& cache, const Key& key) {
  if (cache.empty()) return {};
  const std::filesystem::path file = cache_file<Kept>(cache, key);
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return {};
  const auto unusable = [&](const std::string& why) {
    return Cached<Kept>{std::nullopt, fmt::format("{} is not a record of aisp peak ({}); its ceilings are not used",
                                                  file.string(), base::one_line(why))};
  };
  try {
    Kept kept = evidence::parse_json(base::read_file(file, longest_record_bytes), "JSON").get<Kept>();
    if (kept.key != key) return unusable("it is of another machine");
    return {std::move(kept), {}};
  } catch (const std::exception& error) {
    return unusable(error.what());
  }
}

template <class Kept>
void store(const std::filesystem::path& cache, const Kept& kept) {
  if (cache.empty()) throw base::Error{base::Exit::unfit, "no place for a cache: set HOME or XDG_CACHE_HOME"};
  base::write_atomically(cache_file<Kept>(cache, kept.key), evidence::json_text(nlohmann::json(kept), 2) + '\n');
}

#define AISP_PEAK_KEEPS(Kept)                                                                \
  template std::filesystem::path cache_file<Kept>(const std::filesystem::path&, const Key&); \
  template Cached<Kept> load(const std::filesystem::path&, const Key&);                      \
  template void store(const std::filesystem::path&, const Kept&);
AISP_PEAK_KEEPS(Record)
AISP_PEAK_KEEPS(Levels)
AISP_PEAK_KEEPS(Fabric)
#undef AISP_PEAK_KEEPS

}  // namespace aisp::peak
