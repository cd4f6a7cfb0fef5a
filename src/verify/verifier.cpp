// SPDX-License-Identifier: Apache-2.0
#include "verify/verifier.hpp"

#include <fmt/format.h>
#include <aisp/check.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <new>
#include <numeric>

#include "base/one_way.hpp"
#include "verify/reference.hpp"
#include "verify/variant_check.hpp"

namespace aisp::verify {
namespace {

// Prepares all variants with everything in place that prepare may depend on; the rest changes after it.
void prepare_all(pair::Session& session, const std::vector<const Variant*>& variants, const std::vector<std::size_t>& order,
                 const Options& options, std::vector<Outcome>& outcomes) {
  session.refill(options.seed);
  for (const std::size_t v : order) {
    outcomes[v].variant = variants[v]->name;
    guarded(outcomes[v], "prepare", [&] { outcomes[v].prepare_ms = session.prepare(*variants[v]); });
  }
  session.refill_variable(inputs_seed(options));
}

std::vector<std::size_t> random_order(std::size_t count, std::uint64_t seed) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  base::OneWayRandom random{seed};
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

}  // namespace

std::vector<Outcome> verify(pair::Session& session, const std::vector<const Variant*>& variants, const Options& options,
                            const std::vector<Outcome>* earlier) {
  std::vector<Outcome> outcomes(variants.size());
  const std::vector<std::size_t> order = random_order(variants.size(), base::OneWay{options.seed}(of_order));
  measure::Executor executor{session, {.start = options.start.value_or(session.pair().start), .cache = session.pair().cache}};
  executor.seed(base::OneWay{options.seed}(of_executor));
  prepare_all(session, variants, order, options, outcomes);
  std::vector<VariantCheck> checks;
  checks.reserve(variants.size());
  for (std::size_t v = 0; v < variants.size(); ++v) checks.emplace_back(executor, session, *variants[v], options, outcomes[v]);
  std::vector<bool> comparable(variants.size());
  std::vector<std::size_t> waiting;  // for the baseline; no copy is kept longer
  const auto compare_with_baseline = [&](std::size_t v) {
    if (options.compare_with_baseline && comparable[v] && comparable[0]) checks[v].compare_with_baseline(checks[0]);
  };
  bool baseline_ran = false;
  for (const std::size_t v : order) {
    const auto on_all_ranks = [&](bool well) {
      const std::string why = outcomes[v].problems.empty() ? outcomes[v].unsupported : outcomes[v].problems.front().message;
      return session.rank_group().all("the check of " + std::string{variants[v]->name}, well, why);
    };
    const bool ran = on_all_ranks(outcomes[v].passed()) && on_all_ranks(checks[v].run());
    comparable[v] = ran && variants[v]->outputs != no_outputs;
    if (comparable[v]) checks[v].take_samples();
    waiting.push_back(v);
    baseline_ran |= v == 0;
    if (!baseline_ran) continue;
    for (const std::size_t w : waiting) {
      if (w == 0) continue;
      compare_with_baseline(w);
      checks[w].release();
    }
    waiting.clear();
  }
  // Behind all runs: it sees their inputs.
  if (options.compare_with_reference) {
    const auto start = std::chrono::steady_clock::now();
    // A reference that reads outputs finds nothing in them.
    session.poison_outputs(executor.poison());
    session.workload().compute_reference(session.launch());
    session.synchronize_all();
    ReferenceValues reference{session, options.reference_threads};
    for (const std::size_t v : order)
      if (comparable[v]) checks[v].compare_with_reference(reference);
    for (const std::size_t v : order) {
      if (!comparable[v]) continue;
      if (v != 0 && comparable[0]) checks[v].compare_with_samples(checks[0]);
      if (!session.rank_group().any("the validation", !outcomes[v].passed())) checks[v].validate();
    }
    for (const std::size_t v : order) checks[v].compare_not_finite(reference);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    for (Outcome& outcome : outcomes) outcome.reference_s = taken.count();
  }
  for (std::size_t v = 0; v < variants.size(); ++v)
    for (std::size_t w = 0; w < variants.size(); ++w)
      if (variants[v]->same_bits_as == variants[w]->name && comparable[v] && comparable[w]) checks[v].compare_bits(checks[w]);
  if (earlier == nullptr) return outcomes;
  for (std::size_t v = 0; v < variants.size(); ++v) {
    const auto before = std::ranges::find(*earlier, variants[v]->name, &Outcome::variant);
    if (comparable[v] && before != earlier->end()) checks[v].compare_with_earlier(*before);
  }
  return outcomes;
}

std::vector<Outcome> verify_edge(pair::Session& session, std::vector<const Variant*> variants, Options options) {
  constexpr int most_drawings = 8;
  const std::uint64_t seed = options.seed;
  std::vector<Outcome> outcomes = verify(session, variants, options);
  const auto may_be_chance = [&](std::size_t v) {
    return session.rank_group().any("another drawing", outcomes[v].may_be_chance());
  };
  for (int drawing = 1; drawing < most_drawings; ++drawing) {
    // The baseline comes along, to compare with.
    std::vector<const Variant*> again{variants.front()};
    for (std::size_t v = 1; v < variants.size(); ++v)
      if (may_be_chance(v)) again.push_back(variants[v]);
    if (again.size() == 1 && !may_be_chance(0)) break;
    options.seed = base::OneWay{seed}(of_drawings, static_cast<std::uint64_t>(drawing));
    for (Outcome& drawn : verify(session, again, options)) {
      Outcome& known = *std::ranges::find(outcomes, drawn.variant, &Outcome::variant);
      if (known.may_be_chance() || (!drawn.passed() && !drawn.may_be_chance())) known = std::move(drawn);
    }
  }
  return outcomes;
}

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
