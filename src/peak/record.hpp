// SPDX-License-Identifier: Apache-2.0
// The record of one measurement, the file that keeps it below base::cache_folder(), and the ceilings that it gives.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "machine/ceilings.hpp"
#include "peak/fabric/fabric.hpp"
#include "peak/figures.hpp"
#include "peak/levels/levels.hpp"

namespace aisp::peak {

// Figures: one for each ceiling. Each subject has files and a JSON form of its own.
enum class Subject : std::uint8_t { figures, levels, fabric };

struct PeakRecord {
  Key key{};
  std::string measured_utc{};
  bool quick = false;                    // bursts only, few repetitions
  std::string partial{};                 // why the process that measured did not come to its end; empty when it did
  std::vector<Figure> figures{};         // empty in a record of another subject
  std::optional<MemoryLevels> levels{};  // only in a record of them
  std::optional<Fabric> fabric{};        // likewise
  Subject subject() const { return levels ? Subject::levels : fabric ? Subject::fabric : Subject::figures; }
  const Figure* find(std::string_view id) const { return find_measured(figures, id); }
};

nlohmann::json record_json(const PeakRecord& record);
// Throws base::Error for the JSON of another version of aisp, and for numbers that no measurement gives.
PeakRecord read_record(const nlohmann::json& json, Subject subject);

struct Cached {
  std::optional<PeakRecord> record;
  std::string warning;  // there is a file, but it cannot be used: one line that names it
};
std::filesystem::path cache_file(const std::filesystem::path& cache, const Key& key, Subject subject = Subject::figures);
// Returns nothing at all for an empty `cache`. Never throws: what cannot be read is measured again.
Cached load(const std::filesystem::path& cache, const Key& key, Subject subject = Subject::figures);
// Writes the new record or keeps the old one, never a part. Throws base::Error.
void store(const std::filesystem::path& cache, const PeakRecord& record);

// `known` with everything that was measured in its place. What was not stays, and the source says so; `with_peers`: also
// where that is the rate between GPUs.
machine::Ceilings measured_over(machine::Ceilings known, const PeakRecord& record, bool with_peers);
// The best that is known of this GPU or host without measuring: the cache's record over what was recorded elsewhere.
machine::Ceilings best_known(const machine::Gpu& gpu, const std::string& driver, bool with_peers);
machine::Ceilings best_known(const machine::Host& host);

}  // namespace aisp::peak
