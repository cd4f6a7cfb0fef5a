// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <aisp/check.hpp>

#include <cmath>
#include <new>

#include "verify/reference.hpp"
#include "verify/verifier.hpp"

namespace aisp::verify {

void guarded(Outcome& outcome, const std::string& check, const std::function<void()>& work) {
  const auto fail = [&](std::string message, std::string advice) {
    outcome.problems.push_back(
        {evidence::Stage::verify, std::string{outcome.variant}, check, std::move(message), std::move(advice)});
  };
  try {
    work();
  } catch (const CudaError&) {
    throw;
  } catch (const measure::WaitsForGpu&) {
    throw;
  } catch (const Unsupported& reason) {
    outcome.unsupported = reason.what();
  } catch (const std::bad_alloc&) {
    fail("out of memory", "close other programs or choose a smaller --scale or --size");
  } catch (const std::exception& error) {
    fail(error.what(), {});
  }
}

bool may_be_chance(const pair::Norms& norms, std::size_t elements, const Tolerance& limits) {
  constexpr double few_values = 64, few_codes = 4096, deviations = 4;
  const auto count = static_cast<double>(elements);
  switch (limits.kind) {
    case Tolerance::Kind::exact: return false;
    case Tolerance::Kind::codes: {
      const double expected = limits.share * count;
      return count <= few_codes && norms.most_steps <= limits.most_steps &&
             static_cast<double>(norms.moved) <= expected + deviations * (1 + std::sqrt(expected));
    }
    default:
      return count <= few_values * static_cast<double>(norms.groups) && norms.group_l2 <= near_limits * limits.relative_l2 &&
             norms.largest_element_error <= near_limits * limits.element;
  }
}

Difference difference(const pair::Norms& norms, std::size_t elements, const Tolerance& limits, const Tolerance& other_limits,
                      std::string_view name, std::string_view other) {
  Tolerance both = limits;
  both.most_steps += other_limits.most_steps;
  both.share += other_limits.share;
  both.relative_l2 += other_limits.relative_l2;
  both.element += other_limits.element;
  const bool chance = may_be_chance(norms, elements, both);
  if (limits.kind == Tolerance::Kind::exact) {
    if (norms.mismatches == 0) return {};
    return {fmt::format("{} of {} elements of {} differ from {}", norms.mismatches, elements, name, other)};
  }
  if (limits.kind == Tolerance::Kind::codes) {
    if (norms.most_steps <= both.most_steps && static_cast<double>(norms.moved) <= both.share * static_cast<double>(elements))
      return {};
    return {fmt::format("{} of {} elements of {} differ from {}, by up to {:g} steps of their type ({:g} in {:.2g} % may be)",
                        norms.moved, elements, name, other, norms.most_steps, both.most_steps, 100 * both.share),
            chance};
  }
  if (norms.group_l2 <= both.relative_l2 && norms.largest_element_error <= both.element) return {};
  return {fmt::format("{}{} differs from {}: relative L2 {:.2g} (limit {:.2g}), largest element error {:.2g} (limit {:.2g})",
                      name, in_group(norms), other, norms.group_l2, both.relative_l2, norms.largest_element_error, both.element),
          chance};
}

}  // namespace aisp::verify
