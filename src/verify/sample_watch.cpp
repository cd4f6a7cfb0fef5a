// SPDX-License-Identifier: Apache-2.0
#include "verify/sample_watch.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "pair/all_variants.hpp"
#include "verify/reference.hpp"

namespace aisp::verify {
namespace {

// At least this share of samples is checked if the CPU has to compute their digests.
constexpr double least_share = 0.25;
constexpr std::uint64_t dear_host_bytes = std::uint64_t{32} << 20;
constexpr std::size_t places = 256;  // elements of each output that are compared with the float64 reference
constexpr std::size_t most_texts = 3;
// Factors by which a variant that changes precision may be farther from the baseline on other inputs than in verification: in
// all, and at the farthest element or group. The norm of a group (a row of attention, say) depends on a few of its elements, so
// the farthest of thousands of groups on one set of inputs predicts the farthest on dozens of sets as poorly as with elements.
constexpr double precision_slack_l2 = 1.5, precision_slack_farthest = 3;
// A group of zeros is 1 away from the baseline's; this distinguishes it from one that is only far off.
constexpr double farthest_group = 0.9;

std::uint64_t host_bytes(const pair::Session& session) {
  std::uint64_t bytes = 0;
  for (const Buffer* buffer : session.results())
    if (!pair::on_device(*buffer)) bytes += buffer->bytes();
  return bytes;
}

std::vector<std::uint64_t> digests_now(const pair::Session& session, const pair::DigestKey& key) {
  std::vector<std::uint64_t> digests;
  for (const Buffer* buffer : session.results())
    digests.push_back(pair::digest(buffer->data, buffer->bytes(), session.gpu_of(*buffer), key));
  return digests;
}

// Returns the slack of group limits of a variant that changes precision, given `verified` from verification.
double group_slack(const Outcome& verified) {
  const double known = verified.accuracy.versus_baseline_l2;
  return std::min(precision_slack_farthest * known, std::max(precision_slack_l2 * known, farthest_group));
}

}  // namespace

SampleWatch::SampleWatch(pair::Session& session, std::vector<const Variant*> variants, const std::vector<Outcome>& outcomes,
                         std::uint64_t seed)
    : session_{session}, random_{seed}, digest_share_{host_bytes(session) > dear_host_bytes ? least_share : 1} {
  for (std::size_t v = 0; v < variants.size(); ++v) {
    State& state = states_.emplace_back(State{.variant = variants[v], .outcome = &outcomes[v]});
    for (std::size_t k = 0; k < session.results().size(); ++k)
      if ((variants[v]->outputs >> k & 1) != 0) {
        state.outputs.push_back(static_cast<int>(k));
        const Buffer& buffer = *session.results()[k];
        state.plain &= !buffer.unordered && length_of(static_cast<int>(k)) == buffer.count;
      }
    // Allocates copies now, not at their first use: memory allocated between timed samples counts as the pair's.
    if (state.variant->changes_precision) make_room(state, state.copies);
  }
}

std::size_t SampleWatch::length_of(int output) const {
  return std::min(session_.results()[static_cast<std::size_t>(output)]->count, session_.workload().output_length(output));
}

void SampleWatch::inputs_drawn(std::uint64_t seed) {
  inputs_ = seed;
  key_ = {.mask = random_(), .factor = random_() | 1};
  fresh_ = true;
  truth_of_.reset();
  truth_is_wrong_.clear();
  for (State& state : states_) {
    state.expected.reset();
    state.ran = false;
    state.difference.clear();
    state.early.reset();
  }
}

measure::Capture SampleWatch::plan(std::size_t v) {
  measure::Capture capture{.key = key_, .watch = chance(watched_share_)};
  capture.digest = !states_[v].outputs.empty() && (!states_[v].expected || chance(digest_share_));
  return capture;
}

void SampleWatch::inspect(std::size_t v, const measure::Capture& capture, measure::Sample& sample) {
  State& state = states_[v];
  evidence::SampleChecks& counts = state.findings.counts;
  ++counts.samples;
  sample.inputs = inputs_;
  sample.first_on_inputs = fresh_;
  sample.again_on_inputs = state.ran;
  state.ran = true;
  counts.first_on_inputs += fresh_;
  fresh_ = false;
  const bool watched = session_.on_gpu() ? capture.looked_while_held : capture.watch;
  counts.watched += watched;
  sample.watched = watched;
  state.findings.looks_without_end += capture.look_did_not_end;
  if (capture.watch) state.findings.idle_cpu_ms.push_back(capture.idle_cpu_ms);
  if (capture.touched_while_held) state.findings.gate.push_back(fmt::format("in round {}", sample.round + 1));
  if (!capture.digest) return;
  ++counts.compared;
  compare(v, capture.digests, sample.round);
}

void SampleWatch::compare(std::size_t v, const std::vector<std::uint64_t>& digests, int round) {
  State& state = states_[v];
  const auto same = [&](const std::vector<std::uint64_t>& other) {
    return std::ranges::all_of(state.outputs,
                               [&](int k) { return digests[static_cast<std::size_t>(k)] == other[static_cast<std::size_t>(k)]; });
  };
  if (state.plain && state.expected && same(*state.expected)) return;
  const bool is_early = !truth_of_ && state.variant->changes_precision;
  std::string text;
  if (is_early) copy_outputs(state, state.copies);
  else if (!truth_of_) keep_as_truth(v);
  else text = difference_from_truth(state, nullptr);
  // The outputs that were compared must be those that the sample left: nothing may have changed them in between.
  if (text.empty() && !same(digests_now(session_, key_))) text = "outputs were written after the end of the sample";
  if (is_early && text.empty()) state.early = {round, digests};
  else found(state, digests, round, text);
  if (truth_of_) judge_early_samples();
}

void SampleWatch::found(State& state, const std::vector<std::uint64_t>& digests, int round, const std::string& text) {
  if (text.empty()) {
    if (!state.expected) state.expected = digests;
    return;
  }
  ++state.wrong;
  if (state.difference.empty()) state.difference = fmt::format("in round {}: {}", round + 1, text);
}

void SampleWatch::judge_early_samples() {
  for (State& state : states_) {
    if (!state.early) continue;
    found(state, state.early->digests, state.early->round, difference_from_truth(state, &state.copies));
    state.early.reset();
  }
}

void SampleWatch::keep_as_truth(std::size_t v) {
  truth_of_ = v;
  copy_outputs(states_[v], truth_);
}

void SampleWatch::make_room(const State& state, std::vector<pair::Snapshot>& copies) {
  const bool fits =
      copies.size() == state.outputs.size() && std::ranges::equal(copies, state.outputs, [&](const auto& copy, int k) {
        return &copy.buffer() == session_.results()[static_cast<std::size_t>(k)];
      });
  if (fits) return;
  copies.clear();
  for (const int k : state.outputs) copies.emplace_back(session_, *session_.results()[static_cast<std::size_t>(k)]);
}

void SampleWatch::copy_outputs(const State& state, std::vector<pair::Snapshot>& copies) {
  make_room(state, copies);
  for (std::size_t i = 0; i < copies.size(); ++i) {
    copies[i].queue();
    session_.synchronize_all();
    copies[i].finish();
    copies[i].shorten(length_of(state.outputs[i]));
    if (copies[i].buffer().unordered) copies[i].sort();
  }
}

std::string SampleWatch::difference_from_truth(const State& state, const std::vector<pair::Snapshot>* copies) const {
  const State& truth = states_[*truth_of_];
  pair::Snapshot sorted;
  if (state.outputs.size() != truth_.size()) return "another number of outputs than " + std::string{truth.variant->name};
  for (std::size_t i = 0; i < truth_.size(); ++i) {
    const Buffer& buffer = *session_.results()[static_cast<std::size_t>(state.outputs[i])];
    const std::size_t length = copies != nullptr ? (*copies)[i].elements().count : length_of(state.outputs[i]);
    if (length != truth_[i].elements().count)
      return fmt::format("{} elements of {} are defined, not {}", length, buffer.name, truth_[i].elements().count);
    pair::Elements elements = copies != nullptr ? (*copies)[i].elements() : session_.elements(buffer, length);
    if (buffer.unordered && copies == nullptr) {
      sorted = pair::Snapshot{session_, buffer};
      sorted.queue();
      session_.synchronize_all();
      sorted.finish();
      sorted.shorten(length);
      sorted.sort();
      elements = sorted.elements();
    }
    Tolerance limits = limits_of(state, state.outputs[i]), others = limits_of(truth, truth.outputs[i]);
    const pair::Norms norms = session_.compare(elements, truth_[i].elements(), buffer, limits);
    if (norms.mismatches != 0 && pair::same_bits_declared(session_.pair(), *state.variant, *truth.variant))
      return fmt::format("the bits of {} are not those of {}, as .same_bits_as says", buffer.name, truth.variant->name);
    if (state.variant->changes_precision && limits.kind != Tolerance::Kind::exact) {
      // Steps of codes are counted from the variant's own reference, which is not the truth's.
      if (limits.kind == Tolerance::Kind::codes) limits.kind = Tolerance::Kind::limits;
      const double most = limits.relative_l2 + others.relative_l2 + precision_slack_l2 * state.outcome->versus_baseline_all_l2;
      if (norms.groups > 1 && !(norms.relative_l2() <= most))
        return fmt::format("{} differs from {}'s on the same inputs: relative L2 {:.2g} of all groups (limit {:.2g})",
                           buffer.name, truth.variant->name, norms.relative_l2(), most);
      limits.relative_l2 = norms.groups > 1 ? limits.relative_l2 + group_slack(*state.outcome) : most - others.relative_l2;
      limits.element += precision_slack_farthest * state.outcome->versus_baseline_element;
    }
    std::string text =
        difference(norms, length, limits, others, buffer.name, fmt::format("{}'s on the same inputs", truth.variant->name)).text;
    if (!text.empty()) return text;
  }
  return {};
}

void SampleWatch::check_truth() {
  if (!truth_of_) return;
  // Poisons outputs, so that a reference that reads them finds nothing; the truth is a copy.
  session_.poison_outputs(pair::default_poison);
  session_.workload().compute_reference(session_.launch());
  session_.synchronize_all();
  ++truths_checked_;
  State& state = states_[*truth_of_];
  ReferenceValues reference{session_, 0};
  for (std::size_t i = 0; i < truth_.size(); ++i) {
    ReferenceSamples samples = take_samples(session_, truth_[i], random_(), places);
    const ReferenceCheck checked = check_reference(session_, *state.variant, state.outputs[i], samples, reference);
    if (!checked.problem.text.empty()) truth_is_wrong_ = checked.problem.text;
  }
}

void SampleWatch::resolve() {
  // The baseline's sample on these inputs was not checked.
  for (State& state : states_)
    if (state.early) --state.findings.counts.compared, state.early.reset();
  if (truth_of_ && *truth_of_ != 0 && truth_is_wrong_.empty()) truth_is_wrong_ = states_.front().difference;
  if (truth_of_ && !truth_is_wrong_.empty()) {
    // Samples that were compared with it have no verdict.
    State& truth = states_[*truth_of_];
    truth.findings.counts.wrong += truth.wrong + 1;
    add_wrong(truth, truth_is_wrong_);
  } else {
    for (State& state : states_) {
      state.findings.counts.wrong += state.wrong;
      if (!state.difference.empty()) add_wrong(state, state.difference);
    }
  }
  truth_is_wrong_.clear();
  for (State& state : states_) {
    state.difference.clear();
    state.wrong = 0;
  }
}

void SampleWatch::add_wrong(State& state, const std::string& text) {
  if (state.findings.wrong.size() < most_texts) state.findings.wrong.push_back(text);
}

Tolerance SampleWatch::limits_of(const State& state, int output) const {
  return session_.limits(*state.variant, static_cast<std::size_t>(output));
}

}  // namespace aisp::verify
