// SPDX-License-Identifier: Apache-2.0
#include "verify/variant_check.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/one_way.hpp"
#include "base/system/process_memory.hpp"
#include "measure/idle_watch.hpp"
#include "pair/memory/memory.hpp"
#include "verify/tiles.hpp"

namespace aisp::verify {
namespace {

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

std::string number_text(double value) { return std::isnan(value) ? "NaN" : fmt::format("{}", value); }

// There is one. Halves are counted, since elements of a GPU are not read one by one.
std::size_t first_not_finite(pair::Elements elements) {
  std::size_t before = 0;
  while (elements.count > 1) {
    pair::Elements half = elements;
    half.count = elements.count / 2;
    if (pair::count_not_finite(half) != 0) {
      elements = half;
      continue;
    }
    before += half.count;
    elements.data = static_cast<const std::byte*>(elements.data) + half.bytes();
    elements.count -= half.count;
  }
  return before;
}

}  // namespace

std::uint64_t inputs_seed(const Options& options) { return base::OneWay{options.seed}(of_inputs); }

bool VariantCheck::run() {
  const std::uint64_t inputs_before = outcome_.inputs = session_.digest_inputs();
  bool ran = false;
  guarded(outcome_, "run", [&] { ran = run_twice(); });
  if (!ran) return false;
  // The next variant must not be blamed for it.
  if (session_.digest_inputs() != inputs_before) {
    fail("inputs_unchanged", "an input was modified", "declare the buffer as inout, or write to an output");
    session_.inputs_untouched();
  }
  for (const std::string& damage : session_.damaged_red_zones()) fail("red_zones", damage, "an index runs past the buffer");
  session_.paint_red_zones();
  return outcome_.passed();
}

void VariantCheck::validate() {
  guarded(outcome_, "run", [&] {
    std::vector<pair::Snapshot> no_copies;
    run_once(no_copies);
    session_.workload().validate(variant_.name);
  });
}

void VariantCheck::take_samples() {
  for (std::size_t i = 0; i < written_.outputs.size(); ++i)
    samples_.push_back(verify::take_samples(session_, first_[i], base::OneWay{options_.seed}(of_places, i)));
}

void VariantCheck::compare_with_reference(ReferenceValues& reference) {
  const auto empty = [](const ReferenceSamples& samples) { return samples.indices.empty(); };
  if (!options_.may_be_empty && std::ranges::all_of(samples_, empty))
    fail("reference", "no element of any output was compared: output_length() is 0", "define what the run computes");
  double worst = -1;
  for (std::size_t i = 0; i < written_.outputs.size(); ++i) {
    const ReferenceCheck result = check_reference(session_, variant_, written_.outputs[i], samples_[i], reference);
    fail("reference", result.problem);
    most_from_truth_.push_back(result.most_from_truth);
    const double used =
        result.accuracy.limit_relative_l2 > 0 ? result.accuracy.relative_l2 / result.accuracy.limit_relative_l2 : 0;
    if (used > worst) {
      worst = used;
      const evidence::Accuracy before = outcome_.accuracy;
      outcome_.accuracy = result.accuracy;
      outcome_.accuracy.bitwise_repeatable = before.bitwise_repeatable;
      outcome_.accuracy.versus_baseline_l2 = before.versus_baseline_l2;
    }
  }
}

void VariantCheck::compare_with_baseline(const VariantCheck& baseline) {
  if (written_.outputs.size() != baseline.written_.outputs.size())
    return void(fail("baseline", "writes another number of outputs than the baseline"));
  for (std::size_t i = 0; i < written_.outputs.size(); ++i) {
    if (written_.lengths[i] != baseline.written_.lengths[i]) {
      fail("baseline",
           fmt::format("defines {} elements of {}, the baseline {}", written_.lengths[i], name(i), baseline.written_.lengths[i]));
      continue;
    }
    const pair::Norms norms = compare(i, first_[i], baseline.first_[i]);
    outcome_.accuracy.versus_baseline_l2 = std::max(outcome_.accuracy.versus_baseline_l2, norms.group_l2);
    outcome_.versus_baseline_element = std::max(outcome_.versus_baseline_element, norms.largest_element_error);
    outcome_.versus_baseline_all_l2 = std::max(outcome_.versus_baseline_all_l2, norms.relative_l2());
    from_baseline_.push_back(may_differ(i) ? norms.relative_l2() : 0);
    if (may_differ(i)) continue;
    Difference differs = difference(norms, written_.lengths[i], limits_of(i), baseline.limits_of(i), name(i), "the baseline's");
    if (differs.text.empty()) differs.text = concentrated_error(i, baseline, norms);
    fail("baseline", std::move(differs));
  }
}

// A pair that names groups has said where errors may differ, and each of its groups has been compared.
std::string VariantCheck::concentrated_error(std::size_t i, const VariantCheck& baseline, const pair::Norms& norms) const {
  const Tolerance own = limits_of(i), others = baseline.limits_of(i);
  if (own.kind != Tolerance::Kind::limits || norms.groups > 1 || buffer_of(i).unordered) return {};
  const double rms = std::sqrt(norms.reference_squared / static_cast<double>(written_.lengths[i]));
  return verify::concentrated_error(first_[i], baseline.first_[i], rms, most_of_element * (own.element + others.element),
                                    base::OneWay{options_.seed}(of_tiles, i));
}

void VariantCheck::release() { first_.clear(); }
void VariantCheck::compare_bits(const VariantCheck& other) {
  if (digests_.size() != other.digests_.size())
    return void(fail("same_bits", fmt::format("writes another number of outputs than {}", other.variant_.name)));
  for (std::size_t i = 0; i < digests_.size(); ++i)
    if (digests_[i] != other.digests_[i])
      fail("same_bits", fmt::format("the bits of {} are not those of {}, as .same_bits_as says", name(i), other.variant_.name),
           "add in the same order and round in the same places, or leave the declaration out");
}

void VariantCheck::compare_with_earlier(const Outcome& earlier) {
  if (earlier.digests.empty() || earlier.digests != outcome_.digests) return;
  const bool has_inout = std::ranges::any_of(session_.buffers(), [](const Buffer& buffer) { return buffer.role == Role::inout; });
  if (earlier.inputs == outcome_.inputs && !has_inout)
    fail("depends_on_inputs", "two seeds gave the same inputs, so the outputs did not change either",
         "draw the inputs from the seed");
  else
    fail("depends_on_inputs", "the outputs did not change with the inputs",
         "compute from the inputs in every run; keep nothing between runs");
}

bool VariantCheck::run_twice() {
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
  run_once(second);
  Written again;
  look_behind_hooks(second, again);
  // In every run: a single one may have met a thread that was just falling asleep.
  if (least_idle_cpu_ms_ > measure::IdleWatch::most_spinning_ms)
    fail("background_work",
         fmt::format("a thread or child worked for {:.3g} ms beside the runs, when the pair should have been idle",
                     least_idle_cpu_ms_),
         std::string{"let threads of the pair wait between runs"} + measure::who_spins);
  if (again.lengths != written_.lengths)
    return fail("repeatable_length", "two runs on the same inputs defined different numbers of elements");
  check_elements(second, first_poison, executor_.poison());
  check_tails();
  check_leaks(second);
  return true;
}

void VariantCheck::run_once(std::vector<pair::Snapshot>& copies) {
  measure::Capture capture{.digest = false, .copies = &copies, .watch = true};
  const Range range{session_.launch(), std::string{variant_.name}.c_str()};
  leaks_.before();
  const measure::Executed executed = executor_.execute(variant_, capture);
  leaks_.after();
  if (executed.undisturbed()) outcome_.undisturbed_ms.push_back(executed.host_ms);
  if (capture.touched_while_held)
    fail("gate", "outputs were written while launch.stream was held back",
         "fork other streams from launch.stream with events; do the work on the GPU, not in run()");
  least_idle_cpu_ms_ = std::min(least_idle_cpu_ms_, capture.idle_cpu_ms);
  for (const std::string& limit : executor_.changed_limits())
    fail("limits", "the run changed " + limit + " and left it so", "set it in the constructor, or put it back in the run");
  // On a shared GPU we cannot tell whose work this was.
  if (executed.early_ms > most_early_ms && !base::under_memory_checker())
    fail("early_work", fmt::format("the GPU was busy for {:.3g} ms before the run", executed.early_ms),
         "join other streams to launch.stream with events");
  check_finished(copies);
}

void VariantCheck::check_finished(const std::vector<pair::Snapshot>& copies) {
  if (const std::string changed = changed_since(copies); !changed.empty())
    fail("finished", changed + " was still being written after the stream had finished",
         "join other streams to launch.stream with events");
}

void VariantCheck::look_behind_hooks(std::vector<pair::Snapshot>& copies, Written& written) {
  written = written_by(session_, variant_);
  session_.synchronize_all();
  if (const std::string changed = changed_since(copies); !changed.empty())
    fail("hooks", changed + " was written by output_length()", "compute everything in the run");
  for (std::size_t i = 0; i < copies.size(); ++i) copies[i].shorten(written.lengths[i]);
}

std::string VariantCheck::changed_since(const std::vector<pair::Snapshot>& copies) const {
  for (const pair::Snapshot& copy : copies)
    if (pair::compare(session_.elements(copy.buffer(), copy.buffer().count), copy.elements(), {.bits = true}).mismatches != 0)
      return copy.buffer().name;
  return {};
}

void VariantCheck::scrub_pools() {
  if (session_.on_gpu()) pair::scrub_pools(session_.gpu_ordinals());
}

void VariantCheck::check_elements(std::vector<pair::Snapshot>& second, int first_poison, int second_poison) {
  bool repeatable = true;
  for (std::size_t i = 0; i < written_.outputs.size(); ++i) {
    const Buffer& buffer = buffer_of(i);
    if (buffer.role == Role::output) {
      const std::size_t unwritten =
          pair::count_unwritten(first_[i].elements(), first_poison, second[i].elements(), second_poison);
      if (unwritten != 0)
        fail("written", fmt::format("{} of {} elements of {} were not written", unwritten, written_.lengths[i], name(i)));
    }
    if (const std::size_t wrong = pair::count_not_finite(first_[i].elements()); wrong != 0) report_not_finite(i, wrong);
    if (buffer.unordered) {
      first_[i].sort();
      second[i].sort();
    }
    const pair::Norms norms = compare(i, second[i], first_[i]);
    repeatable &= norms.mismatches == 0;
    // Never chance: the inputs are the same.
    Difference again =
        difference(norms, written_.lengths[i], limits_of(i), limits_of(i), name(i), "the first run's on the same inputs");
    again.may_be_chance = false;
    // Equal NaN have no distance, and are reported as such above.
    if (norms.mismatches != 0) fail("second_run", std::move(again), "compute everything in every run");
    digests_.push_back(pair::digest(first_[i].elements().data, first_[i].elements().bytes(), first_[i].elements().gpu));
    outcome_.digests[buffer.name] = digests_.back();
  }
  outcome_.accuracy.bitwise_repeatable = repeatable;
  if (!options_.require_repeatable) return;
  if (!variant_.deterministic)
    fail("reproducible", "this variant has no deterministic path", "leave --reproducible out, or choose another variant");
  else if (!repeatable) fail("reproducible", "two runs on the same inputs gave different bits");
}

void VariantCheck::report_not_finite(std::size_t i, std::size_t count) {
  const std::size_t index = first_not_finite(first_[i].elements());
  const double value = first_[i].values({index}).front();
  if (!buffer_of(i).unordered)  // else it has no place in the reference
    not_finite_.push_back({.output = written_.outputs[i], .index = index, .problem = outcome_.problems.size()});
  fail("finite", fmt::format("{} of {} elements of {} are NaN or infinite, the first of them is element {}: {}", count,
                             written_.lengths[i], name(i), index, number_text(value)));
}

void VariantCheck::compare_not_finite(ReferenceValues& reference) {
  for (const NotFinite& found : not_finite_) {
    const double expected = variant_.changes_precision ? reference.quantized(variant_, found.output, {found.index}).front()
                                                       : reference.of(found.output, {found.index}).front();
    evidence::Problem& problem = outcome_.problems[found.problem];
    if (std::isfinite(expected)) {
      problem.message += fmt::format(", expected {}", expected);
      continue;
    }
    problem.message += fmt::format(", and the reference is {} there too", number_text(expected));
    problem.advice =
        "results must be finite to be compared: choose inputs that have such results, or define others in their place";
  }
}

void VariantCheck::check_tails() {
  for (std::size_t i = 0; i < written_.outputs.size(); ++i) {
    const Buffer& buffer = buffer_of(i);
    if (written_.lengths[i] == buffer.count || buffer.role != Role::output) continue;
    const auto* tail = static_cast<const unsigned char*>(buffer.data) + written_.lengths[i] * buffer.element_bytes;
    const std::size_t bytes = (buffer.count - written_.lengths[i]) * buffer.element_bytes;
    if (pair::count_byte_mismatches(tail, executor_.poison(), bytes, session_.gpu_of(buffer)) != 0)
      fail("written", "elements of " + name(i) + " beyond its length were written");
  }
}

void VariantCheck::check_leaks(std::vector<pair::Snapshot>& copies) {
  if (!options_.check_memory) return;
  // The first run may load code and fill caches, and the second is the first of those that tell. Only what goes on is a leak.
  constexpr int runs_of_a_plain_leak = 2, runs_of_a_small_one = 32;
  pair::RankGroup& ranks = session_.rank_group();
  for (int grown = 1; ranks.any("what memory is left", leaks_.grew()); ++grown) {
    const bool small = ranks.any("how much memory is left", leaks_.grew() && leaks_.threads_may_keep_it());
    if (grown >= (small ? runs_of_a_small_one : runs_of_a_plain_leak)) {
      if (leaks_.grew()) fail("memory", leaks_.text(), "free what the run allocates, or allocate it in the constructor");
      return;
    }
    run_once(copies);
  }
}

void VariantCheck::compare_with_samples(const VariantCheck& baseline) {
  for (std::size_t i = 0; i < std::min({from_baseline_.size(), most_from_truth_.size(), baseline.most_from_truth_.size()}); ++i) {
    if (samples_[i].indices.empty()) continue;
    const double most = most_from_truth_[i] + std::max(baseline.most_from_truth_[i], baseline.limits_of(i).relative_l2);
    if (from_baseline_[i] <= most) continue;
    fail("baseline",
         Difference{
             fmt::format("all of {} differs from the baseline's by {:.2g} (relative L2), where samples of both allow {:.2g}",
                         name(i), from_baseline_[i], most),
             from_baseline_[i] <= near_limits * most});
  }
}

bool VariantCheck::may_differ(std::size_t i) const {
  return variant_.changes_precision && limits_of(i).kind != Tolerance::Kind::exact;
}
Tolerance VariantCheck::limits_of(std::size_t i) const {
  return session_.limits(variant_, static_cast<std::size_t>(written_.outputs[i]));
}
pair::Norms VariantCheck::compare(std::size_t i, const pair::Snapshot& found, const pair::Snapshot& reference) const {
  return session_.compare(found.elements(), reference.elements(), buffer_of(i), limits_of(i));
}

const Buffer& VariantCheck::result(int output) const { return *session_.results()[static_cast<std::size_t>(output)]; }
const Buffer& VariantCheck::buffer_of(std::size_t i) const { return result(written_.outputs[i]); }
std::string VariantCheck::name(std::size_t i) const { return buffer_of(i).name; }
bool VariantCheck::fail(std::string check, std::string message, std::string advice) {
  outcome_.problems.push_back(
      {evidence::Stage::verify, std::string{variant_.name}, std::move(check), std::move(message), std::move(advice)});
  return false;
}

void VariantCheck::fail(std::string check, Difference difference, std::string advice) {
  if (difference.text.empty()) return;
  outcome_.by_chance += difference.may_be_chance;
  fail(std::move(check), std::move(difference.text), std::move(advice));
}

}  // namespace aisp::verify
