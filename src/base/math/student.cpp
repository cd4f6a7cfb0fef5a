// SPDX-License-Identifier: Apache-2.0
#include "base/math/student.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace aisp::base {
namespace {

// `z` is the quantile of the normal distribution, `first` those of one to three degrees, where the expansion is not exact.
double quantile(double z, const std::array<double, 4>& first, double degrees) {
  if (degrees <= 3) return first.at(static_cast<std::size_t>(std::max(1.0, std::floor(degrees))));
  // Abramowitz, Stegun: Handbook of Mathematical Functions, 26.7.5.
  const double z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z, z9 = z7 * z * z;
  return z + (z3 + z) / (4 * degrees) + (5 * z5 + 16 * z3 + 3 * z) / (96 * std::pow(degrees, 2)) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * std::pow(degrees, 3)) +
         (79 * z9 + 776 * z7 + 1482 * z5 - 1920 * z3 - 945 * z) / (92160 * std::pow(degrees, 4));
}

}  // namespace

double student_t_975(double degrees) { return quantile(1.959964, {12.706, 12.706, 4.303, 3.182}, degrees); }

double student_t_995(double degrees) { return quantile(2.575829, {63.657, 63.657, 9.925, 5.841}, degrees); }

}  // namespace aisp::base
