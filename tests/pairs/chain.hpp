// SPDX-License-Identifier: Apache-2.0
// Chains of dependent steps, whose time is proportional to their number: the same code twice, and slower by as many percent as
// AISP_FIXTURE_SLOWED_PERCENT says. What a comparison makes of them is known beforehand.
#pragma once
#include <cstdint>
#include <cstdlib>

namespace aisp::fixtures {

// x -> multiplier * x + increment, modulo 2^32.
struct Affine {
  std::uint32_t multiplier = 1;
  std::uint32_t increment = 0;

  constexpr std::uint32_t operator()(std::uint32_t x) const { return multiplier * x + increment; }
  // This step after `before`.
  constexpr Affine after(Affine before) const { return {multiplier * before.multiplier, (*this)(before.increment)}; }
};

inline constexpr Affine one_step{1664525U, 1013904223U};

// All steps in one, for the reference.
constexpr Affine steps_at_once(unsigned steps) {
  Affine all;
  for (unsigned i = 0; i < steps; ++i) all = one_step.after(all);
  return all;
}

// Steps of the slowed variant that are thrown away.
inline unsigned planted_steps(unsigned steps) {
  const char* percent = std::getenv("AISP_FIXTURE_SLOWED_PERCENT");  // NOLINT(concurrency-mt-unsafe): nobody sets it
  return percent == nullptr ? 0 : static_cast<unsigned>(steps * std::atof(percent) / 100);  // NOLINT(cert-err34-c)
}

}  // namespace aisp::fixtures
