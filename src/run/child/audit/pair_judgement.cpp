// SPDX-License-Identifier: Apache-2.0
#include "run/child/audit/pair_audit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>

#include "base/text.hpp"
#include "measure/statistics/statistics.hpp"
#include "pair/all_variants.hpp"
#include "run/child/timing/samples.hpp"
#include "run/results/assemble.hpp"

namespace aisp::run {
namespace {

constexpr double telling_autocorrelation = 0.2;
// Means may confirm so much less of a speedup than medians, with so many samples.
constexpr double most_below_median = 0.15;
constexpr std::size_t fewest_of_modes = 20;

// Whether the correlation is above the limit, and not by chance: with n independent samples it varies by 1 / sqrt(n).
bool drifts(const evidence::Timing& timing) {
  const double chance = 3 / std::sqrt(static_cast<double>(timing.summary.count));
  return timing.autocorrelation && *timing.autocorrelation > std::max(telling_autocorrelation, chance);
}

void note_metrics(const Request& request, const Timed& timed, double offset_ms) {
  std::vector<evidence::Metric>& metrics = timed.result->metrics;
  for (evidence::Metric& metric : metrics_of(timed.samples, offset_ms, request.percentiles)) {
    if (std::ranges::find(metrics, metric.name, &evidence::Metric::name) != metrics.end())
      throw std::runtime_error{"the pair reports a metric '" + metric.name +
                               "', which is one of .timeline; give it another name"};
    metrics.push_back(std::move(metric));
  }
  timed.result->inference =
      inference_of(timed.samples, offset_ms, {request.ttft_target_ms, request.tpot_target_ms}, request.percentiles);
}

void note_floor(const Context& context, Record& record, pair::Session& session, const Timed& timed) {
  evidence::VariantResult& variant = *timed.result;
  variant.floor = context.environment.floor(session.workload().variant_cost(variant.name), session.bytes_written(*timed.variant),
                                            variant.timing->summary.median, record.result().gpu_states);
}

void note_claims(Record& record, const std::vector<Timed>& timed, const Judge& judge, const measure::Correction& correction) {
  Claims claims = claim_speedups(timed, judge, correction, record.result().lesson);
  for (std::string& warning : claims.warnings) record.warn(std::move(warning));
  if (!claims.best.empty()) record.result().best = std::move(claims.best);
}

void check_bests(const Pair& pair, Record& record, const std::vector<Timed>& timed, const Judge& judge,
                 const measure::Correction& correction) {
  for (const Timed& best : timed)
    for (const Variant* variant : pair::members_of_set(pair, *best.variant)) {
      const auto member = std::ranges::find(timed, variant, &Timed::variant);
      const auto loss = member != timed.end() ? loss_to(*member, best, judge, correction) : std::nullopt;
      if (!loss) continue;
      std::string message =
          fmt::format("it calls itself the fastest of a set, and is {:.3f}x [{:.3f}, {:.3f}] as fast as {}, a member",
                      loss->value, loss->low, loss->high, variant->name);
      record.warn(fmt::format("{}: {}", best.result->name, message));
      record.complain(best.result->name, "best_of_set", std::move(message),
                      "choose as samples are timed (aisp::fastest), or take the member out of its .best_of");
    }
}

// Tells of speedups that the means of all samples but the slowest tenth do not confirm: of bimodal times a median shows one mode.
// A variant judged by a metric has no speedup of times.
void note_modes(Record& record, const std::vector<Timed>& timed) {
  const auto mean_ms = [](const Timed& each) {
    std::vector<double> times_ms;
    for (const measure::Sample& sample : each.samples) times_ms.push_back(sample.raw_ms);
    return measure::trimmed_mean(std::move(times_ms)) - each.result->timing->offset_ms;
  };
  for (const Timed& each : timed) {
    const std::optional<evidence::Speedup>& speedup = each.result->speedup;
    if (!speedup || speedup->verdict != evidence::Verdict::faster || each.samples.size() < fewest_of_modes) continue;
    const double by_means = mean_ms(timed.front()) / mean_ms(each);
    if (by_means > 0 && by_means < (1 - most_below_median) * speedup->low)
      record.note(
          fmt::format("{}: {:.3g}x by medians, but {:.3g}x by means without the slowest tenth: its times are of two kinds",
                      each.result->name, speedup->value, by_means));
  }
}

void note_drift(Record& record, const std::vector<Timed>& all) {
  double most = 0;
  for (const Timed& timed : all)
    if (const evidence::Timing& timing = *timed.result->timing; drifts(timing)) most = std::max(most, *timing.autocorrelation);
  if (most > 0) record.note(evidence::drift_note(most));
}

// On the host no other limit of memory is known, so this is an error; a GPU has theoretical peaks, so this is a warning.
void check_ceiling(const Context& context, Record& record, const pair::Session& session, const Timed& timed, const Cost& cost) {
  const auto above =
      context.environment.above_ceiling(cost, session.bytes_written(*timed.variant), timed.result->timing->summary.median);
  if (!above) return;
  if (session.on_gpu())
    record.warn(
        fmt::format("{}: its time is {}; its declared cost is too high, or a ceiling too low", timed.result->name, *above));
  else
    record.problem(
        timed.result->name, "possible_time", fmt::format("its time is {}", *above),
        "the declared cost is too high or work is missing; if the machine was busy when its ceilings were measured: aisp peak "
        "--refresh");
}

void check_floor(const Context& context, Record& record, pair::Session& session, const Timed& timed) {
  const Cost cost = session.workload().variant_cost(timed.variant->name);
  const auto arithmetic = context.environment.impossible(cost, timed.result->timing->summary.median, context.pair.cache);
  if (arithmetic)
    record.problem(timed.result->name, "possible_time", *arithmetic, "the declared cost is too high or work is missing");
  else check_ceiling(context, record, session, timed, cost);
}

}  // namespace

void judge(const Context& context, Record& record, pair::Session& session, const Samples& samples,
           const measure::Correction& correction) {
  const Judge by{std::string{context.pair.judged_by}, context.request.seed, context.pair.device == Device::host};
  const double offset_ms = correction.offset();
  note_times(context.request, record, samples.timed, correction);
  for (const Timed& timed : samples.timed) {
    note_metrics(context.request, timed, offset_ms);
    // A floor is for the whole run's time: next to a speedup of another figure it would be misread.
    if (by.metric.empty()) note_floor(context, record, session, timed);
  }
  note_claims(record, samples.timed, by, correction);
  check_bests(context.pair, record, samples.timed, by, correction);
  if (by.metric.empty()) note_modes(record, samples.timed);
  note_drift(record, samples.timed);
  for (const Timed& timed : samples.timed) check_floor(context, record, session, timed);
}

}  // namespace aisp::run
