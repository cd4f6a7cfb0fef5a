// SPDX-License-Identifier: Apache-2.0
#include "run/child/audit/timed_difference.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "measure/statistics/statistics.hpp"

namespace aisp::run {
namespace {

// The audit and the timed rounds may differ by this part: they have other pauses, and so another clock on a chip at its power
// cap.
constexpr double other_pace = 0.2;
// The most that CUPTI adds to a sample.
constexpr double audit_slack_ms = 0.003;
// The extra time for each kernel if kernels are short: CUPTI keeps independent ones, as in branches of a graph, from overlapping.
// 320 kernels of 0.7 us in 16 branches took 1.4 to 2.5 us each under CUPTI.
constexpr double audit_kernel_slack_ms = 0.002, short_kernel_ms = 0.003;
// The same for kernels of graphs, which CUPTI serializes, too: 530 of them in 48 graphs on 16 streams took 4.1 us each, and 1 us
// each when they were timed.
constexpr double audit_node_slack_ms = 0.004, short_node_ms = 0.006;

// Returns the most that CUPTI may add to the time in which the GPU is busy.
double slack_ms_of(const Medians& medians) {
  const auto of_short_ones = [&](double count, double slack_ms, double short_ms) {
    return medians.busy_ms <= medians.calls * short_ms ? slack_ms * std::max(0.0, count - 1) : 0;
  };
  return audit_slack_ms + std::max(of_short_ones(medians.calls, audit_kernel_slack_ms, short_kernel_ms),
                                   of_short_ones(medians.nodes, audit_node_slack_ms, short_node_ms));
}

// Returns the median over these inputs of the variant's median sample on each, or of its first sample alone. Nothing if there are
// no such samples.
std::optional<double> raw_ms_on(const Timed& timed, const std::vector<std::uint64_t>& inputs, bool first) {
  std::vector<double> on_each;
  for (const std::uint64_t seed : inputs) {
    std::vector<double> raw_ms;
    for (const measure::Sample& sample : timed.samples)
      if (sample.inputs == seed && !(first && sample.again_on_inputs)) raw_ms.push_back(sample.raw_ms);
    if (!raw_ms.empty()) on_each.push_back(measure::median(raw_ms));
  }
  if (on_each.empty()) return std::nullopt;
  return measure::median(on_each);
}

}  // namespace

Medians medians_of(const std::vector<AuditedRun>& runs) {
  std::vector<double> busy_ms, span_ms, host_ms, run_ms, calls, nodes;
  for (const AuditedRun& run : runs) {
    busy_ms.push_back(static_cast<double>(run.audit.timeline.busy_ns) * 1e-6);
    span_ms.push_back(static_cast<double>(run.audit.timeline.span_ns) * 1e-6);
    host_ms.push_back(run.host_ms);
    run_ms.push_back(run.run_ms);
    calls.push_back(static_cast<double>(run.audit.timeline.kernels + run.audit.timeline.copies));
    nodes.push_back(static_cast<double>(run.audit.timeline.nodes));
  }
  return {.busy_ms = measure::median(busy_ms),
          .span_ms = measure::median(span_ms),
          .host_ms = measure::median(host_ms),
          .run_ms = measure::median(run_ms),
          .calls = measure::median(calls),
          .nodes = measure::median(nodes)};
}

std::optional<TimedDifference> difference(const Variant& variant, const Medians& medians, double raw_ms,
                                          const TimedComparison& with) {
  const double timed_ms = std::max(0.0, raw_ms - with.offset_ms);
  if (medians.busy_ms > (1 + other_pace) * timed_ms + slack_ms_of(medians) && with.one_gpu)
    return TimedDifference{
        fmt::format("the GPU was busy for {:.4g} ms in an execution that was timed as {:.4g} ms", medians.busy_ms, timed_ms),
        "do all work between the start and the end of launch.stream's"};
  // A control without outputs may be slower when timed: nothing verifies that it repeats its work, and its time leaves no work
  // out.
  if (variant.outputs == no_outputs) return std::nullopt;
  // From an immediate start CUPTI makes the host's calls longer, so only a timed sample above the audited time is evidence.
  const bool released = with.start == Start::released;
  const double audited_ms = released ? medians.span_ms : medians.host_ms;
  const double least_ms = (1 + (released ? other_pace : 1)) * audited_ms + (released ? audit_slack_ms : 0.05);
  if (timed_ms <= least_ms) return std::nullopt;
  return TimedDifference{
      fmt::format("timed as {:.4g} ms, but an execution like it took {:.4g} ms afterwards", timed_ms, audited_ms),
      "do the same work in every run"};
}

std::vector<std::uint64_t> timed_inputs(const Timed& timed, int since_round, int count, base::OneWayRandom& random) {
  std::vector<std::uint64_t> present;
  for (const measure::Sample& sample : timed.samples)
    if (sample.round >= since_round) present.push_back(sample.inputs);
  std::vector<std::uint64_t> drawn;
  for (int i = 0; i < count && !present.empty(); ++i) drawn.push_back(present[random() % present.size()]);
  return drawn;
}

bool took_as_timed(const Timed& timed, const std::vector<std::uint64_t>& inputs, const Medians& medians,
                   const TimedComparison& with) {
  const auto took = [&](const std::optional<double>& raw_ms) {
    return raw_ms && !difference(*timed.variant, medians, *raw_ms, with);
  };
  return took(raw_ms_on(timed, inputs, true)) && took(raw_ms_on(timed, inputs, false));
}

}  // namespace aisp::run
