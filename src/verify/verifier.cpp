// SPDX-License-Identifier: Apache-2.0
#include "verify/verifier.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <new>

#include "verify/leaks.hpp"
#include "verify/reference.hpp"
#include "verify/snapshot.hpp"

namespace aisp::verify {
namespace {

// Two runs with different poison: an element that nobody writes holds one value after the first run and the other after the
// second.
constexpr std::array<int, 2> poisons{pair::default_poison, 0x7B};

// The outputs that a variant declares, in order, and how many elements of each are defined.
struct Written {
  std::vector<int> outputs;
  std::vector<std::size_t> lengths;
};

std::vector<int> outputs_of(pair::Session& session, const Variant& variant) {
  std::vector<int> outputs;
  for (std::size_t k = 0; k < session.results().size(); ++k)
    if ((variant.outputs >> k & 1) != 0) outputs.push_back(static_cast<int>(k));
  return outputs;
}

Written written_by(pair::Session& session, const Variant& variant) {
  Written written{.outputs = outputs_of(session, variant)};
  for (const int output : written.outputs)
    written.lengths.push_back(
        std::min(session.results()[static_cast<std::size_t>(output)]->count, session.workload().output_length(output)));
  return written;
}

class VariantCheck {
 public:
  VariantCheck(pair::Session& session, const Variant& variant, const Options& options, Outcome& outcome)
      : session_{session}, variant_{variant}, options_{options}, outcome_{outcome} {}

  // Runs twice and checks all that needs no comparison value. False when there is nothing left to compare.
  bool run() {
    const std::uint64_t inputs_before = session_.digest_inputs();
    bool ran = false;
    guarded(outcome_, "run", [&] { ran = run_twice(); });
    if (!ran) return false;
    if (session_.digest_inputs() != inputs_before)
      fail("inputs_unchanged", "an input was modified", "declare the buffer as inout, or write to an output");
    for (const std::string& damage : session_.damaged_red_zones()) fail("red_zones", damage, "an index runs past the buffer");
    return outcome_.passed();
  }

  void compare_with_reference() {
    double worst = -1;
    for (std::size_t i = 0; i < written_.outputs.size(); ++i) {
      const ReferenceCheck result =
          check_reference(session_, variant_, written_.outputs[i], first_[i], options_.seed, options_.reference_threads);
      for (const std::string& problem : result.problems) fail("reference", problem);
      const double used =
          result.accuracy.limit_relative_l2 > 0 ? result.accuracy.relative_l2 / result.accuracy.limit_relative_l2 : 0;
      if (used <= worst) continue;
      worst = used;
      const bool repeatable = outcome_.accuracy.bitwise_repeatable;
      outcome_.accuracy = result.accuracy;
      outcome_.accuracy.bitwise_repeatable = repeatable;
    }
  }

  // Both lie within the tolerance of the truth, so they lie within twice that of each other.
  void compare_with_baseline(const VariantCheck& baseline) {
    if (written_.outputs.size() != baseline.written_.outputs.size())
      return void(fail("baseline", "writes another number of outputs than the baseline"));
    for (std::size_t i = 0; i < written_.outputs.size(); ++i) {
      if (written_.lengths[i] != baseline.written_.lengths[i]) {
        fail("baseline", fmt::format("defines {} elements of {}, the baseline {}", written_.lengths[i], name(i),
                                     baseline.written_.lengths[i]));
        continue;
      }
      const pair::Norms norms = pair::compare(first_[i].elements(), baseline.first_[i].elements());
      outcome_.accuracy.versus_baseline_l2 = std::max(outcome_.accuracy.versus_baseline_l2, norms.relative_l2());
      const bool may_differ = variant_.changes_precision && limits_of(i).kind != Tolerance::Kind::exact;
      if (const std::string text = difference(norms, i, "the baseline's"); !text.empty() && !may_differ) fail("baseline", text);
    }
  }

  // Copies of large outputs are not kept longer than needed.
  void release() { first_.clear(); }

  void compare_with_earlier(const Outcome& earlier) {
    if (earlier.digests.empty() || earlier.digests != outcome_.digests) return;
    fail("depends_on_inputs", "the outputs did not change with the inputs",
         "compute from the inputs in every run; keep nothing between runs");
  }

 private:
  bool run_twice() {
    std::vector<Snapshot> second;
    for (const int output : outputs_of(session_, variant_)) {
      first_.emplace_back(session_, result(output));
      second.emplace_back(session_, result(output));
    }
    run_once(poisons[0]);
    written_ = written_by(session_, variant_);
    check_finished(first_);
    run_once(poisons[1]);
    const Written again = written_by(session_, variant_);
    if (again.lengths != written_.lengths)
      return fail("repeatable_length", "two runs on the same inputs defined different numbers of elements");
    // In the first run, loading code can hold work back until other streams are done.
    if (outcome_.passed()) check_finished(second);
    else take(second);
    session_.workload().validate(variant_.name);
    check_elements(second);
    check_tails();
    check_leaks();
    return true;
  }

  void run_once(int poison) {
    leaks_.before();
    session_.execute(variant_, poison);
    leaks_.after();
  }

  void take(std::vector<Snapshot>& snapshots) {
    for (std::size_t i = 0; i < snapshots.size(); ++i) snapshots[i].take(session_, buffer_of(i), written_.lengths[i]);
  }

  // The stream has run dry; whatever else is still at work was not part of what would be timed.
  void check_finished(std::vector<Snapshot>& snapshots) {
    take(snapshots);
    session_.synchronize_all();
    for (std::size_t i = 0; i < snapshots.size(); ++i) {
      if (pair::compare(session_.elements(buffer_of(i), written_.lengths[i]), snapshots[i].elements()).mismatches == 0) continue;
      fail("finished", name(i) + " was still being written after the stream had finished",
           "join other streams to launch.stream with events");
      return;
    }
  }

  void check_elements(std::vector<Snapshot>& second) {
    bool repeatable = true;
    for (std::size_t i = 0; i < written_.outputs.size(); ++i) {
      const Buffer& buffer = buffer_of(i);
      if (buffer.role == Role::output) {
        const std::size_t unwritten = pair::count_unwritten(first_[i].elements(), poisons[0], second[i].elements(), poisons[1]);
        if (unwritten != 0)
          fail("written", fmt::format("{} of {} elements of {} were not written", unwritten, written_.lengths[i], name(i)));
      }
      if (const std::size_t wrong = pair::count_not_finite(first_[i].elements()); wrong != 0)
        fail("finite", fmt::format("{} of {} elements of {} are NaN or infinite", wrong, written_.lengths[i], name(i)));
      if (buffer.unordered) {
        first_[i].sort();
        second[i].sort();
      }
      const pair::Norms norms = pair::compare(second[i].elements(), first_[i].elements());
      repeatable &= norms.mismatches == 0;
      if (const std::string text = difference(norms, i, "the first run's on the same inputs"); !text.empty())
        fail("second_run", text, "compute everything in every run");
      outcome_.digests[buffer.name] =
          pair::digest(first_[i].elements().data, first_[i].elements().bytes(), first_[i].elements().gpu);
    }
    outcome_.accuracy.bitwise_repeatable = repeatable;
    if (!options_.require_repeatable) return;
    if (!variant_.deterministic)
      fail("reproducible", "this variant has no deterministic path", "leave --reproducible out, or choose another variant");
    else if (!repeatable) fail("reproducible", "two runs on the same inputs gave different bits");
  }

  // Behind the defined elements of a result of variable length the poison must still be there.
  void check_tails() {
    for (std::size_t i = 0; i < written_.outputs.size(); ++i) {
      const Buffer& buffer = buffer_of(i);
      if (written_.lengths[i] == buffer.count || buffer.role != Role::output) continue;
      const auto* tail = static_cast<const unsigned char*>(buffer.data) + written_.lengths[i] * buffer.element_bytes;
      const std::size_t bytes = (buffer.count - written_.lengths[i]) * buffer.element_bytes;
      if (pair::count_byte_mismatches(tail, poisons[1], bytes, session_.gpu_of(buffer)) != 0)
        fail("written", "elements of " + name(i) + " beyond its length were written");
    }
  }

  void check_leaks() {
    // The second run tells: the first may load code and fill caches. Only growth in a third one as well is a leak.
    if (!options_.check_memory || !leaks_.grew()) return;
    run_once(poisons[1]);
    if (leaks_.grew()) fail("memory", leaks_.text(), "free what the run allocates, or allocate it in the constructor");
  }

  // Why the i-th output is not what it was compared with, or nothing. Twice the limits: each may be off by once.
  std::string difference(const pair::Norms& norms, std::size_t i, std::string_view other) const {
    const Tolerance limits = limits_of(i);
    if (limits.kind == Tolerance::Kind::exact)
      return norms.mismatches == 0
                 ? std::string{}
                 : fmt::format("{} of {} elements of {} differ from {}", norms.mismatches, written_.lengths[i], name(i), other);
    if (norms.relative_l2() <= 2 * limits.relative_l2 && norms.largest_element_error <= 2 * limits.element) return {};
    return fmt::format("{} differs from {}: relative L2 {:.2g} (limit {:.2g}), largest element error {:.2g} (limit {:.2g})",
                       name(i), other, norms.relative_l2(), 2 * limits.relative_l2, norms.largest_element_error,
                       2 * limits.element);
  }

  Tolerance limits_of(std::size_t i) const {
    const Buffer& buffer = buffer_of(i);
    return resolve(variant_.tolerance.value_or(session_.pair().tolerance), buffer.type);
  }

  const Buffer& result(int output) const { return *session_.results()[static_cast<std::size_t>(output)]; }
  const Buffer& buffer_of(std::size_t i) const { return result(written_.outputs[i]); }
  std::string name(std::size_t i) const { return buffer_of(i).name; }

  bool fail(std::string check, std::string message, std::string advice = {}) {
    outcome_.problems.push_back({"verify", std::string{variant_.name}, std::move(check), std::move(message), std::move(advice)});
    return false;
  }

  pair::Session& session_;
  const Variant& variant_;
  const Options& options_;
  Outcome& outcome_;
  Written written_;
  std::vector<Snapshot> first_;
  LeakWatch leaks_{session_, options_.own_device_bytes};
};

// What prepare may depend on is in place before it; everything else changes after it.
void prepare_all(pair::Session& session, const std::vector<const Variant*>& variants, const Options& options,
                 std::vector<Outcome>& outcomes) {
  session.refill(options.seed);
  for (std::size_t v = 0; v < variants.size(); ++v) {
    outcomes[v].variant = variants[v]->name;
    guarded(outcomes[v], "prepare", [&] { outcomes[v].prepare_ms = session.prepare(*variants[v]); });
  }
  session.refill_variable(random_bits(options.seed, 1));
  if (options.compare_with_reference) session.workload().compute_reference(session.launch());
  session.synchronize_all();
}

}  // namespace

void guarded(Outcome& outcome, const std::string& check, const std::function<void()>& work) {
  const auto fail = [&](std::string message, std::string advice) {
    outcome.problems.push_back({"verify", std::string{outcome.variant}, check, std::move(message), std::move(advice)});
  };
  try {
    work();
  } catch (const CudaError&) {
    throw;
  } catch (const Unsupported& reason) {
    outcome.unsupported = reason.what();
  } catch (const std::bad_alloc&) {
    fail("out of memory", "close other programs or choose a smaller --scale or --size");
  } catch (const std::exception& error) {
    fail(error.what(), {});
  }
}

std::vector<Outcome> verify(pair::Session& session, const std::vector<const Variant*>& variants, const Options& options,
                            const std::vector<Outcome>* earlier) {
  std::vector<Outcome> outcomes(variants.size());
  prepare_all(session, variants, options, outcomes);
  std::vector<VariantCheck> checks;
  checks.reserve(variants.size());
  for (std::size_t v = 0; v < variants.size(); ++v) {
    VariantCheck& check = checks.emplace_back(session, *variants[v], options, outcomes[v]);
    const bool comparable = outcomes[v].passed() && check.run();
    if (comparable && options.compare_with_reference) check.compare_with_reference();
    if (comparable && v > 0 && options.compare_with_baseline && outcomes[0].passed()) check.compare_with_baseline(checks[0]);
    if (comparable && earlier != nullptr && v < earlier->size()) check.compare_with_earlier((*earlier)[v]);
    if (v > 0) check.release();
  }
  return outcomes;
}

}  // namespace aisp::verify
