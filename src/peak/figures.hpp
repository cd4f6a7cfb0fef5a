// SPDX-License-Identifier: Apache-2.0
// What `aisp peak` finds out: one figure a ceiling, and the record of one GPU or of the host that the cache keeps.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "machine/machine.hpp"

namespace aisp::peak {

enum class Unit : std::uint8_t { bytes_per_second, flop_per_second, seconds };
std::string_view name_of(Unit unit);  // "B/s", "FLOP/s", "s"

// All figures there are, in the order of the table.
struct Known {
  std::string_view id;     // "hbm_copy": stable, for scripts
  std::string_view title;  // "HBM copy"
  Unit unit;
  bool host = false;  // of the host's part
};
std::span<const Known> known_figures();
const Known* find_known(std::string_view id);  // null for an id of another version

// The same load for seconds, with the state of the GPU towards its end.
struct Sustained {
  double value = 0;
  double duration_s = 0;
  int sm_clock_mhz = 0;  // this and the next are 0 where NVML does not tell
  double power_w = 0;
  std::uint64_t throttle_reasons = 0;
};

struct Figure {
  std::string id;
  double value = 0;  // of a short burst: median over repetitions
  std::string how;   // "cuBLASLt, 8192^3", "cudaMemcpyAsync"
  std::optional<Sustained> sustained;
  std::string why_not;  // why there is no value; empty when there is one
  bool measured() const { return value > 0; }
};

// What a record holds for. Anything else needs a new measurement.
struct Key {
  std::string of;            // UUID of a GPU; "host"
  std::string model;         // "NVIDIA H200"; the CPU's model name
  std::string driver;        // empty for the host
  double power_limit_w = 0;  // 0: not told, or the host
  int cpus = 0;              // usable ones, for the host
  bool operator==(const Key&) const = default;
};
Key key_of(const machine::Gpu& gpu, const std::string& driver);
Key key_of(const machine::Host& host);

struct Record {
  Key key;
  std::string measured_utc;
  bool quick = false;  // bursts only, few repetitions
  std::vector<Figure> figures;
  const Figure* find(std::string_view id) const;  // null when it was not measured
};

void to_json(nlohmann::json& json, const Figure& figure);
void from_json(const nlohmann::json& json, Figure& figure);
void to_json(nlohmann::json& json, const Key& key);
void from_json(const nlohmann::json& json, Key& key);
void to_json(nlohmann::json& json, const Record& record);
void from_json(const nlohmann::json& json, Record& record);  // throws std::exception for what no measurement gives

}  // namespace aisp::peak
