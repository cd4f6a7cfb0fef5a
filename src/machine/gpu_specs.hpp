// SPDX-License-Identifier: Apache-2.0
// The makers' specifications of their GPUs, each value with its source: the only place for such facts. Rates are dense.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "machine/number_types.hpp"

namespace aisp::machine {

struct SourceText {
  std::string_view title, url;
};
inline constexpr SourceText command_line{"the command line", ""};

// How the sheet's figure became ours.
enum class Reading : std::uint8_t {
  stated,
  half,        // the sheet states the rate with 2:4 sparsity, twice the dense one
  share,       // the sheet states a board's or a rack's total
  half_share,  // both
  derived,     // the sheet states another type; the chip's units relate the two
  slow_fp64,   // the whitepaper states what part of the fp32 rate it is
  rt_cores,    // the sheet states ray tracing cores, of which an SM has one
  dies,        // the sheet states one die's
};
std::string_view text_of(Reading reading);  // "" for stated

struct Fact {
  double value = 0;
  const SourceText* source = nullptr;  // null: the sheets do not say
  Reading reading = Reading::stated;
  // Why it may be wrong, one clause: its document was not read or states it not, or another one contradicts it. Empty: no doubt.
  std::string_view doubt{};
  constexpr Fact doubted(std::string_view why) const { return {value, source, reading, why}; }
  bool doubtful() const { return !doubt.empty(); }
  bool known() const { return source != nullptr; }
};
std::string citation(const Fact& fact);  // "NVIDIA H200 datasheet (half of the rate with sparsity)"
// Behind a number that rests on a doubtful figure, wherever it is shown.
constexpr std::string_view mark(bool doubtful) { return doubtful ? "?" : ""; }

// Recorded by `aisp peak` as bursts, before a power cap lowers the clock; 0 where nobody measured.
struct RecordedCeilings {
  std::string_view gpu;  // as the driver names it
  std::string_view on;   // "an H200"
  double copy_bytes_s = 0, read_bytes_s = 0, l2_bytes_s = 0;
  std::array<double, math_kinds> flops_s{};  // by Math
  double host_to_device_bytes_s = 0, device_to_host_bytes_s = 0;
  double peer_bytes_s = 0, peer_pull_bytes_s = 0, all_reduce_bytes_s = 0;
  std::string_view all_reduce_by;  // the library, and of how many GPUs
  double launch_s = 0;             // a node of a graph that follows another
};

struct GpuSpec {
  std::string_view key;     // "h200", as users type it; empty: only the bandwidth limit is known, and `aisp specs` leaves it out
  std::string_view family;  // "h100": the first of the table is meant by it
  std::string_view name;    // "H200 SXM"
  std::string_view reported;  // part of the name that the driver reports; the first of the table that fits counts
  // No chip of that name moves more: the sheet's bandwidth, rounded up, of the fastest product that the name covers.
  double memory_limit_bytes_s = 0;
  Fact memory_bytes{};                     // the sheet's GB as 10^9
  Fact device_bytes{};                     // that programs find: often more, since sheets count in 2^30; unknown where not read
  Fact memory_bytes_s{};                   // bandwidth
  std::array<Fact, rate_kinds> flops_s{};  // by NumberType; int8: operations
  Fact link_bytes_s{};          // NVLink (AMD: Infinity Fabric) to all peers together, both directions; 0: there is none
  double cpu_link_bytes_s = 0;  // NVLink-C2C of a superchip, one direction; 0: PCIe
  Fact tdp_w{};
  Fact sms{};       // streaming multiprocessors that a program can use; AMD: compute units
  Fact l2_bytes{};  // the sheet's MB as 2^20
  const RecordedCeilings* recorded = nullptr;

  const Fact& memory() const { return device_bytes.known() ? device_bytes : memory_bytes; }
  const Fact& rate(NumberType type) const {
    static constexpr Fact unstated{};
    return static_cast<std::size_t>(type) < rate_kinds ? flops_s[static_cast<std::size_t>(type)] : unstated;
  }
  // FLOP per byte from which on arithmetic, not memory, is the limit: rate over bandwidth. 0 without the rate.
  double ridge(NumberType type) const { return memory_bytes_s.value > 0 ? rate(type).value / memory_bytes_s.value : 0; }
};

// A figure and the name that `aisp specs` gives it in JSON and with --source.
struct NamedFact {
  std::string name;
  const Fact* fact = nullptr;
};
std::vector<NamedFact> facts_of(const GpuSpec& spec);

// A caveat on a number.
struct Doubt {
  std::string of;
  std::string_view why;
};
std::vector<Doubt> doubts_of(const GpuSpec& spec, const std::vector<const Fact*>& used);
// A line for each reason: "memory_bytes, tdp_w: WHY".
std::vector<std::string> lines_of(const std::vector<Doubt>& doubts);

// The GPUs of which all is known, oldest family first.
std::vector<const GpuSpec*> all_specs();
// By key, family ("h100" means H100 SXM) or the name that nvidia-smi prints, whatever the case. Throws base::Error naming the
// nearest for any other, and `otherwise`, what else can be done.
const GpuSpec& find_spec(std::string_view word, std::string_view otherwise = {});
// Those of the table that the words name: a key, or a family for all of its members; all for no words.
std::vector<const GpuSpec*> select_specs(const std::vector<std::string>& words);
// Returns the specification of a GPU by its driver name; null if unknown. Its bandwidth limit is known, the rest may not be.
const GpuSpec* spec_of_reported(std::string_view name);
// Returns the ceilings recorded on the very product; null if there are none.
const RecordedCeilings* recorded_of_reported(std::string_view name);

}  // namespace aisp::machine
