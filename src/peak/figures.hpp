// SPDX-License-Identifier: Apache-2.0
// One figure for each ceiling that `aisp peak` measures, and the conditions that figures hold for.
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

// Ids of figures that code goes by: stable, for scripts and for the cache. Those of math are the names of its types.
namespace figure_id {
inline constexpr std::string_view hbm_read = "hbm_read", hbm_write = "hbm_write", hbm_copy = "hbm_copy", hbm_triad = "hbm_triad";
inline constexpr std::string_view l2_read = "l2_read", shared_read = "shared_read";
inline constexpr std::string_view host_to_device = "host_to_device", device_to_host = "device_to_host",
                                  both_directions = "both_directions";
inline constexpr std::string_view peer_copy = "peer_copy", peer_pull = "peer_pull", all_reduce = "all_reduce";
inline constexpr std::string_view kernel_launch = "kernel_launch", graph_launch = "graph_launch", graph_node = "graph_node";
inline constexpr std::string_view event_record = "event_record", synchronize = "synchronize", empty_kernel = "empty_kernel";
inline constexpr std::string_view host_read = "host_read", host_write = "host_write", host_copy = "host_copy";
}  // namespace figure_id

// All figures there are, in the order of the table.
struct Known {
  std::string_view id;     // "hbm_copy"
  std::string_view title;  // "HBM copy"
  Unit unit;
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
const Figure* find_measured(const std::vector<Figure>& among, std::string_view id);  // null when it was not measured

inline constexpr std::string_view key_of_host = "host";

// The conditions that a record holds for. Anything else needs a new measurement.
struct Key {
  std::string of;            // UUID of a GPU, or key_of_host
  std::string model;         // "NVIDIA H200"; the CPU's model name
  std::string driver;        // empty for the host
  double power_limit_w = 0;  // 0: not told, or the host
  int cpus = 0;              // usable ones, for the host
  bool operator==(const Key&) const = default;
};
Key key_of(const machine::Gpu& gpu, const std::string& driver);
Key key_of(const machine::Host& host);

void to_json(nlohmann::json& json, const Figure& figure);
void from_json(const nlohmann::json& json, Figure& figure);  // throws base::Error for what no measurement gives

}  // namespace aisp::peak
