// SPDX-License-Identifier: Apache-2.0
// The properties of chips of a compute capability, whatever product they are in: the only table of such facts. Limits, peaks,
// needs and topology read it; gpu_specs.hpp has what is the product's.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "machine/number_types.hpp"

namespace aisp::machine {

enum class Tcgen05 : std::uint8_t { none, lacking_on_blackwell, present, unknown };

struct Chip {
  int sm = 0;  // compute capability times ten
  // Floating-point (int8: integer) operations per SM and clock, dense, a fused multiply-add counted as two; by Math.
  std::array<double, math_kinds> per_clock{};
  double special_functions_per_clock = 16;  // results of an SM
  double nvlink_bytes_s = 0;                // to all peers together, one direction, of the generation; 0: there is none
  int pcie_generation = 4;                  // where the driver does not tell
  bool dsmem = false;                       // distributed shared memory between the blocks of a cluster
  bool tma = false;                         // the tensor memory accelerator
  Tcgen05 tcgen05 = Tcgen05::none;          // the fifth-generation tensor core's instructions, and tensor memory
  // The L1 data cache and shared memory of an SM together, and what shared memory can be set to, by the programming guide's
  // tables; 0 and empty where they do not list the chip.
  int unified_kib = 0;
  std::span<const int> shared_kib{};
};

// One of a later generation is given the most of all, so that nothing honest is called impossible on it.
Chip chip_of(int sm);
std::string sm_text(int sm);  // "sm_90"
// Compute capabilities of the table, ascending: all, and those with that answer.
std::vector<int> known_chips();
std::vector<int> chips_with(Tcgen05 answer);

// Per clock and SM: bytes from L2 and instructions of its four schedulers.
inline constexpr double l2_bytes_per_clock = 64, issue_slots_per_clock = 4;

}  // namespace aisp::machine
