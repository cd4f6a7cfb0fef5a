// SPDX-License-Identifier: Apache-2.0
#include "verify/verifier.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <new>
#include <numeric>
#include <random>

#include "base/system/memory_checker.hpp"
#include "measure/idle_watch.hpp"
#include "pair/memory/pools.hpp"
#include "verify/leaks.hpp"
#include "verify/reference.hpp"

namespace aisp::verify {
namespace {

// The outputs that a variant declares, in order, and how many elements of each are defined.
struct Written {
  std::vector<int> outputs;
  std::vector<std::size_t> lengths;
};

std::uint64_t inputs_seed(const Options& options) { return random_bits(options.seed, 1); }

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
  VariantCheck(measure::Executor& executor, pair::Session& session, const Variant& variant, const Options& options,
               Outcome& outcome)
      : executor_{executor}, session_{session}, variant_{variant}, options_{options}, outcome_{outcome} {}

  // Runs twice and checks all that needs no comparison value. False when there is nothing left to compare.
  bool run() {
    const std::uint64_t inputs_before = session_.digest_inputs();
    bool ran = false;
    guarded(outcome_, "run", [&] { ran = run_twice(); });
    if (!ran) return false;
    // Whoever comes next must not be blamed for it.
    if (session_.digest_inputs() != inputs_before) {
      fail("inputs_unchanged", "an input was modified", "declare the buffer as inout, or write to an output");
      session_.inputs_untouched();
    }
    for (const std::string& damage : session_.damaged_red_zones()) fail("red_zones", damage, "an index runs past the buffer");
    session_.paint_red_zones();
    return outcome_.passed();
  }

  // The workload's own checks may use the reference, which is computed behind all runs: they see one more.
  void validate() {
    guarded(outcome_, "run", [&] {
      std::vector<pair::Snapshot> no_copies;
      run_once(no_copies);
      session_.workload().validate(variant_.name);
    });
  }

  // Before the copies go.
  void take_samples() {
    for (std::size_t i = 0; i < written_.outputs.size(); ++i)
      samples_.push_back(verify::take_samples(session_, first_[i], random_bits(random_bits(options_.seed, 4), i)));
  }

  void compare_with_reference() {
    const auto empty = [](const ReferenceSamples& samples) { return samples.indices.empty(); };
    if (!options_.may_be_empty && std::ranges::all_of(samples_, empty))
      fail("reference", "no element of any output was compared: output_length() is 0", "define what the run computes");
    double worst = -1;
    for (std::size_t i = 0; i < written_.outputs.size(); ++i) {
      const ReferenceCheck result =
          check_reference(session_, variant_, written_.outputs[i], samples_[i], options_.reference_threads);
      for (const std::string& problem : result.problems) fail("reference", problem);
      const double used =
          result.accuracy.limit_relative_l2 > 0 ? result.accuracy.relative_l2 / result.accuracy.limit_relative_l2 : 0;
      if (used > worst) {
        worst = used;
        const evidence::Accuracy before = outcome_.accuracy;
        outcome_.accuracy = result.accuracy;
        outcome_.accuracy.bitwise_repeatable = before.bitwise_repeatable;
        outcome_.accuracy.versus_baseline_l2 = before.versus_baseline_l2;
      }
      if (i < beyond_samples_.size()) compare_with_samples(i, result.accuracy);
    }
  }

  // Both lie within the tolerance of the truth.
  void compare_with_baseline(const VariantCheck& baseline) {
    if (written_.outputs.size() != baseline.written_.outputs.size())
      return void(fail("baseline", "writes another number of outputs than the baseline"));
    for (std::size_t i = 0; i < written_.outputs.size(); ++i) {
      if (written_.lengths[i] != baseline.written_.lengths[i]) {
        fail("baseline", fmt::format("defines {} elements of {}, the baseline {}", written_.lengths[i], name(i),
                                     baseline.written_.lengths[i]));
        continue;
      }
      const pair::Norms norms = compare(i, first_[i], baseline.first_[i]);
      outcome_.accuracy.versus_baseline_l2 = std::max(outcome_.accuracy.versus_baseline_l2, norms.group_l2);
      outcome_.versus_baseline_element = std::max(outcome_.versus_baseline_element, norms.largest_element_error);
      outcome_.versus_baseline_all_l2 = std::max(outcome_.versus_baseline_all_l2, norms.relative_l2());
      beyond_samples_.push_back(may_differ(i) ? norms.relative_l2() : 0);
      if (may_differ(i)) continue;
      const std::string text =
          difference(norms, written_.lengths[i], limits_of(i), baseline.limits_of(i), name(i), "the baseline's");
      if (!text.empty()) fail("baseline", text);
    }
  }

  // Copies of large outputs are not kept longer than needed.
  void release() { first_.clear(); }

  // Digests suffice, so that no copy is kept for it.
  void compare_bits(const VariantCheck& other) {
    if (digests_.size() != other.digests_.size())
      return void(fail("same_bits", fmt::format("writes another number of outputs than {}", other.variant_.name)));
    for (std::size_t i = 0; i < digests_.size(); ++i)
      if (digests_[i] != other.digests_[i])
        fail("same_bits", fmt::format("the bits of {} are not those of {}, as .same_bits_as says", name(i), other.variant_.name),
             "add in the same order and round in the same places, or leave the declaration out");
  }

  void compare_with_earlier(const Outcome& earlier) {
    if (earlier.digests.empty() || earlier.digests != outcome_.digests) return;
    fail("depends_on_inputs", "the outputs did not change with the inputs",
         "compute from the inputs in every run; keep nothing between runs");
  }

 private:
  bool run_twice() {
    std::vector<pair::Snapshot> second;
    for (const int output : outputs_of(session_, variant_)) {
      first_.emplace_back(session_, result(output));
      second.emplace_back(session_, result(output));
    }
    executor_.load(variant_);
    scrub_pools();
    run_once(first_);
    const int first_poison = executor_.poison();
    if (outcome_.passed()) look_behind_hooks(first_, written_);
    do run_once(second);
    while (executor_.poison() == first_poison);
    Written again;
    look_behind_hooks(second, again);
    // In every run: a single one may have met a thread that was just falling asleep.
    if (least_idle_cpu_ms_ > measure::IdleWatch::most_spinning_ms)
      fail("background_work",
           fmt::format("a thread or child worked for {:.3g} ms beside the runs, when the pair should have been idle",
                       least_idle_cpu_ms_),
           "let threads of the pair wait between runs");
    if (again.lengths != written_.lengths)
      return fail("repeatable_length", "two runs on the same inputs defined different numbers of elements");
    check_elements(second, first_poison, executor_.poison());
    check_tails();
    check_leaks(second);
    return true;
  }

  // Copies are taken right behind the execution; what the buffers hold when all has come to rest must be the same.
  void run_once(std::vector<pair::Snapshot>& copies) {
    measure::Capture capture{.digest = false, .copies = &copies, .watch = true};
    if (variant_.reset != nullptr) capture.inputs = inputs_;
    const Range range{session_.launch(), std::string{variant_.name}.c_str()};
    leaks_.before();
    const measure::Executed executed = executor_.execute(variant_, capture);
    leaks_.after();
    outcome_.longest_ms = std::max(outcome_.longest_ms, executed.host_ms);
    if (capture.touched_while_held)
      fail("gate", "outputs were written while launch.stream was held back",
           "fork other streams from launch.stream with events; do the work on the GPU, not in run()");
    least_idle_cpu_ms_ = std::min(least_idle_cpu_ms_, capture.idle_cpu_ms);
    for (const std::string& limit : executor_.changed_limits())
      fail("limits", "the run changed " + limit + " and left it so", "set it in the constructor, or put it back in the run");
    // Of a GPU that is shared nobody knows who was at work.
    if (executed.early_ms > most_early_ms && !base::under_memory_checker())
      fail("early_work", fmt::format("the GPU was busy for {:.3g} ms before the run", executed.early_ms),
           "join other streams to launch.stream with events");
    check_finished(copies);
  }

  // The stream has run dry; whatever else was still at work was not part of what would be timed.
  void check_finished(const std::vector<pair::Snapshot>& copies) {
    if (const std::string changed = changed_since(copies); !changed.empty())
      fail("finished", changed + " was still being written after the stream had finished",
           "join other streams to launch.stream with events");
  }

  // The length of a result is asked for when copies are safe, and must not touch what it looks at.
  void look_behind_hooks(std::vector<pair::Snapshot>& copies, Written& written) {
    written = written_by(session_, variant_);
    session_.synchronize_all();
    if (const std::string changed = changed_since(copies); !changed.empty())
      fail("hooks", changed + " was written by output_length()", "compute everything in the run");
    for (std::size_t i = 0; i < copies.size(); ++i) copies[i].shorten(written.lengths[i]);
  }

  std::string changed_since(const std::vector<pair::Snapshot>& copies) const {
    for (const pair::Snapshot& copy : copies)
      if (pair::compare(session_.elements(copy.buffer(), copy.buffer().count), copy.elements(), {.bits = true}).mismatches != 0)
        return copy.buffer().name;
    return {};
  }

  // What the pools hold of earlier variants must not be what this one finds.
  void scrub_pools() {
    if (session_.on_gpu()) pair::scrub_pools(session_.gpu_ordinals());
  }

  void check_elements(std::vector<pair::Snapshot>& second, int first_poison, int second_poison) {
    bool repeatable = true;
    for (std::size_t i = 0; i < written_.outputs.size(); ++i) {
      const Buffer& buffer = buffer_of(i);
      if (buffer.role == Role::output) {
        const std::size_t unwritten =
            pair::count_unwritten(first_[i].elements(), first_poison, second[i].elements(), second_poison);
        if (unwritten != 0)
          fail("written", fmt::format("{} of {} elements of {} were not written", unwritten, written_.lengths[i], name(i)));
      }
      if (const std::size_t wrong = pair::count_not_finite(first_[i].elements()); wrong != 0)
        fail("finite", fmt::format("{} of {} elements of {} are NaN or infinite", wrong, written_.lengths[i], name(i)));
      if (buffer.unordered) {
        first_[i].sort();
        second[i].sort();
      }
      const pair::Norms norms = compare(i, second[i], first_[i]);
      repeatable &= norms.mismatches == 0;
      const std::string text =
          difference(norms, written_.lengths[i], limits_of(i), limits_of(i), name(i), "the first run's on the same inputs");
      if (!text.empty()) fail("second_run", text, "compute everything in every run");
      digests_.push_back(pair::digest(first_[i].elements().data, first_[i].elements().bytes(), first_[i].elements().gpu));
      outcome_.digests[buffer.name] = digests_.back();
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
      if (pair::count_byte_mismatches(tail, executor_.poison(), bytes, session_.gpu_of(buffer)) != 0)
        fail("written", "elements of " + name(i) + " beyond its length were written");
    }
  }

  void check_leaks(std::vector<pair::Snapshot>& copies) {
    // The second run tells: the first may load code and fill caches. Only growth in a third one as well is a leak.
    if (!options_.check_memory || !leaks_.grew()) return;
    run_once(copies);
    if (leaks_.grew()) fail("memory", leaks_.text(), "free what the run allocates, or allocate it in the constructor");
  }

  // A variant that changes precision is compared with the reference on samples only, so the whole array must be as far from the
  // baseline as the samples are from the unquantized reference, and no farther.
  void compare_with_samples(std::size_t i, const evidence::Accuracy& sampled) {
    const double whole = beyond_samples_[i];
    if (sampled.samples == 0 || whole <= most_beyond_samples * sampled.unquantized_l2 + 2 * limits_of(i).relative_l2) return;
    fail("baseline", fmt::format("{} differs from the baseline's by {:.2g} (relative L2) in all, but by {:.2g} on the samples",
                                 name(i), whole, sampled.unquantized_l2));
  }

  bool may_differ(std::size_t i) const { return variant_.changes_precision && limits_of(i).kind != Tolerance::Kind::exact; }

  Tolerance limits_of(std::size_t i) const { return session_.limits(variant_, static_cast<std::size_t>(written_.outputs[i])); }
  pair::Norms compare(std::size_t i, const pair::Snapshot& found, const pair::Snapshot& reference) const {
    return session_.compare(found.elements(), reference.elements(), buffer_of(i), limits_of(i));
  }

  const Buffer& result(int output) const { return *session_.results()[static_cast<std::size_t>(output)]; }
  const Buffer& buffer_of(std::size_t i) const { return result(written_.outputs[i]); }
  std::string name(std::size_t i) const { return buffer_of(i).name; }

  bool fail(std::string check, std::string message, std::string advice = {}) {
    outcome_.problems.push_back({"verify", std::string{variant_.name}, std::move(check), std::move(message), std::move(advice)});
    return false;
  }

  // Other streams answer within this when they have nothing to do.
  static constexpr double most_early_ms = 0.25;
  static constexpr double most_beyond_samples = 1.5;

  measure::Executor& executor_;
  pair::Session& session_;
  const Variant& variant_;
  const Options& options_;
  Outcome& outcome_;
  const std::uint64_t inputs_ = inputs_seed(options_);
  Written written_;
  std::vector<pair::Snapshot> first_;
  std::vector<ReferenceSamples> samples_;
  std::vector<std::uint64_t> digests_;  // of the first run's outputs, in their order
  std::vector<double> beyond_samples_;  // of variants that change precision: how far all of each output is from the baseline's
  double least_idle_cpu_ms_ = INFINITY;
  LeakWatch leaks_{session_, options_.own_device_bytes};
};

// What prepare may depend on is in place before it; everything else changes after it.
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
  std::mt19937_64 random{seed};
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

}  // namespace

std::vector<Outcome> verify(pair::Session& session, const std::vector<const Variant*>& variants, const Options& options,
                            const std::vector<Outcome>* earlier) {
  std::vector<Outcome> outcomes(variants.size());
  const std::vector<std::size_t> order = random_order(variants.size(), random_bits(options.seed, 2));
  measure::Executor executor{session, {.start = options.start.value_or(session.pair().start), .cache = session.pair().cache}};
  executor.seed(random_bits(options.seed, 3));
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
    comparable[v] = outcomes[v].passed() && checks[v].run() && variants[v]->outputs != no_outputs;
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
    for (const std::size_t v : order) {
      if (!comparable[v]) continue;
      checks[v].compare_with_reference();
      if (outcomes[v].passed()) checks[v].validate();
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    for (Outcome& outcome : outcomes) outcome.reference_s = taken.count();
  }
  for (std::size_t v = 0; v < variants.size(); ++v)
    for (std::size_t w = 0; w < variants.size(); ++w)
      if (variants[v]->same_bits_as == variants[w]->name && comparable[v] && comparable[w]) checks[v].compare_bits(checks[w]);
  for (std::size_t v = 0; earlier != nullptr && v < std::min(variants.size(), earlier->size()); ++v)
    if (comparable[v]) checks[v].compare_with_earlier((*earlier)[v]);
  return outcomes;
}

}  // namespace aisp::verify
