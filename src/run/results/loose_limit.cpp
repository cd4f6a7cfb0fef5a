// SPDX-License-Identifier: Apache-2.0
#include "run/results/loose_limit.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace aisp::run {
namespace {

constexpr double most_times_the_error = 1000;

}  // namespace

std::optional<std::string> loose_limit(const evidence::VariantResult& variant, const Tolerances& tolerances) {
  if (!variant.accuracy || variant.accuracy->samples == 0) return std::nullopt;
  const evidence::Accuracy& found = *variant.accuracy;
  // The accuracy is of the output that came nearest to its limit.
  const auto chosen = [&](const Tolerance& tolerance) {
    return tolerance.kind == Tolerance::Kind::limits && tolerance.relative_l2 == found.limit_relative_l2;
  };
  if (std::ranges::none_of(tolerances, chosen)) return std::nullopt;
  if (!(found.limit_relative_l2 > most_times_the_error * found.relative_l2)) return std::nullopt;
  return fmt::format(
      "{}: its tolerance allows a relative L2 error of {:.2g}, and {:.2g} was found; a limit near that would catch "
      "more",
      variant.name, found.limit_relative_l2, found.relative_l2);
}

}  // namespace aisp::run
