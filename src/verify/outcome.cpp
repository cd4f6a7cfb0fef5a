// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <aisp/check.hpp>

#include <new>

#include "verify/reference.hpp"
#include "verify/verifier.hpp"

namespace aisp::verify {

void guarded(Outcome& outcome, const std::string& check, const std::function<void()>& work) {
  const auto fail = [&](std::string message, std::string advice) {
    outcome.problems.push_back({"verify", std::string{outcome.variant}, check, std::move(message), std::move(advice)});
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

std::string difference(const pair::Norms& norms, std::size_t elements, const Tolerance& limits, const Tolerance& other_limits,
                       std::string_view name, std::string_view other) {
  if (limits.kind == Tolerance::Kind::exact)
    return norms.mismatches == 0 ? std::string{}
                                 : fmt::format("{} of {} elements of {} differ from {}", norms.mismatches, elements, name, other);
  if (limits.kind == Tolerance::Kind::codes) {
    const double most_steps = limits.most_steps + other_limits.most_steps, share = limits.share + other_limits.share;
    if (norms.most_steps <= most_steps && static_cast<double>(norms.moved) <= share * static_cast<double>(elements)) return {};
    return fmt::format("{} of {} elements of {} differ from {}, by up to {:g} steps of their type ({:g} in {:.2g} % may be)",
                       norms.moved, elements, name, other, norms.most_steps, most_steps, 100 * share);
  }
  const double most_l2 = limits.relative_l2 + other_limits.relative_l2, most_element = limits.element + other_limits.element;
  if (norms.group_l2 <= most_l2 && norms.largest_element_error <= most_element) return {};
  return fmt::format("{}{} differs from {}: relative L2 {:.2g} (limit {:.2g}), largest element error {:.2g} (limit {:.2g})", name,
                     in_group(norms), other, norms.group_l2, most_l2, norms.largest_element_error, most_element);
}

}  // namespace aisp::verify
