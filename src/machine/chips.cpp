// SPDX-License-Identifier: Apache-2.0
#include "machine/chips.hpp"

#include <algorithm>

namespace aisp::machine {
namespace {

constexpr std::array ampere_kib = {0, 8, 16, 32, 64, 100, 132, 164};
constexpr std::array small_kib = {0, 8, 16, 32, 64, 100};
constexpr std::array hopper_kib = {0, 8, 16, 32, 64, 100, 132, 164, 196, 228};

// per_clock:      fp64 fp64t fp32  tf32  fp16   bf16   fp8    int8
constexpr std::array chips = {
    Chip{.sm = 80,
         .per_clock = {64, 128, 128, 1024, 2048, 2048, 0, 4096},
         .nvlink_bytes_s = 300e9,
         .unified_kib = 192,
         .shared_kib = ampere_kib},
    Chip{.sm = 86,
         .per_clock = {4, 4, 256, 512, 1024, 1024, 0, 2048},
         .nvlink_bytes_s = 56.25e9,
         .unified_kib = 128,
         .shared_kib = small_kib},
    Chip{.sm = 87, .per_clock = {4, 4, 256, 512, 1024, 1024, 0, 2048}, .unified_kib = 192, .shared_kib = ampere_kib},
    Chip{.sm = 89, .per_clock = {4, 4, 256, 512, 1024, 1024, 2048, 2048}, .unified_kib = 128, .shared_kib = small_kib},
    Chip{.sm = 90,
         .per_clock = {128, 256, 256, 2048, 4096, 4096, 8192, 8192},
         .nvlink_bytes_s = 450e9,
         .unified_kib = 256,
         .shared_kib = hopper_kib},
    Chip{.sm = 100,
         .per_clock = {128, 128, 256, 4096, 8192, 8192, 16384, 16384},
         .nvlink_bytes_s = 900e9,
         .tcgen05 = Tcgen05::present,
         .unified_kib = 256,
         .shared_kib = hopper_kib},
    Chip{.sm = 103,
         .per_clock = {8, 8, 256, 4096, 8192, 8192, 16384, 2048},
         .special_functions_per_clock = 32,
         .nvlink_bytes_s = 900e9,
         .tcgen05 = Tcgen05::present,
         .unified_kib = 256,
         .shared_kib = hopper_kib},
    Chip{.sm = 110, .per_clock = {8, 8, 256, 4096, 8192, 8192, 16384, 16384}, .tcgen05 = Tcgen05::present},
    Chip{.sm = 120,
         .per_clock = {4, 4, 256, 512, 1024, 1024, 2048, 2048},
         .tcgen05 = Tcgen05::lacking_on_blackwell,
         .unified_kib = 128,
         .shared_kib = small_kib},
    Chip{.sm = 121, .per_clock = {4, 4, 256, 512, 1024, 1024, 2048, 2048}, .tcgen05 = Tcgen05::lacking_on_blackwell},
};

}  // namespace

Chip chip_of(int sm) {
  const auto known = [](int wanted) { return std::ranges::find(chips, wanted, &Chip::sm); };
  Chip chip{.sm = sm, .per_clock = known(100)->per_clock, .tcgen05 = sm < 100 ? Tcgen05::none : Tcgen05::unknown};
  if (const auto* const found = known(sm); found != chips.end()) chip = *found;
  // Facts of generations.
  chip.pcie_generation = sm >= 100 ? 6 : sm >= 90 ? 5 : 4;
  chip.tma = sm >= 90;
  chip.dsmem = sm >= 90 && sm != 121;
  return chip;
}

std::string sm_text(int sm) { return "sm_" + std::to_string(sm); }

std::vector<int> known_chips() {
  std::vector<int> found;
  for (const Chip& chip : chips) found.push_back(chip.sm);
  return found;
}

std::vector<int> chips_with(Tcgen05 answer) {
  std::vector<int> found;
  for (const Chip& chip : chips)
    if (chip.tcgen05 == answer) found.push_back(chip.sm);
  return found;
}

}  // namespace aisp::machine
