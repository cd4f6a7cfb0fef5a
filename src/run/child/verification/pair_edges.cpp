// SPDX-License-Identifier: Apache-2.0
#include "run/child/verification/pair_verification.hpp"

#include <fmt/format.h>
#include <aisp/check.hpp>

#include "run/child/context.hpp"
#include "run/child/pair_setup.hpp"
#include "run/child/profiling/profiler.hpp"

namespace aisp::run {
namespace {

void absorb(Record& record, verify::Outcome& outcome) {
  if (!outcome.unsupported.empty())
    record.warn(record.located(fmt::format("{} was left out: {}", outcome.variant, outcome.unsupported)));
  outcome.unsupported.clear();
  for (evidence::Problem& found : outcome.problems) {
    found.stage = record.stage();
    found.message = record.located(found.message);
  }
  record.absorb_failures(outcome);
}

// Verifies one edge; sizes that it does not name are those of the run.
void verify_edge(const Context& context, Record& record, const Case& edge, Start start) {
  pair::SessionOptions session_of_edge = session_options(context);
  session_of_edge.small_shape = context.pair.verification == Verification::small_shape;
  for (const auto& [name, value] : pair::parse_sizes(edge.sizes)) session_of_edge.sizes[name] = value;
  pair::Session session{context.pair, std::move(session_of_edge)};
  watch_ranges(session);
  verify::Options options{.seed = base::OneWay{context.request.seed}(stream_of_edges),
                          .may_be_empty = true,
                          .require_repeatable = context.request.reproducible,
                          .check_memory = false};
  Verified verified = verify_from(start, record, [&](Start from) {
    options.start = from;
    return verify::verify_edge(session, record.active(), options);
  });
  for (verify::Outcome& outcome : verified.outcomes) absorb(record, outcome);
  record.agree(context.ranks);
}

}  // namespace

void verify_edges(const Context& context, Stages& stages, Record& record, Start start) {
  if (context.pair.edges.empty() || !context.request.sizes.empty()) return;
  stages.begin(evidence::Stage::edges, context.request.limits.verify);
  for (const Case& edge : context.pair.edges) {
    // If an earlier edge found the baseline wrong, there is nothing to compare the others with.
    const std::vector<const Variant*> active = record.active();
    if (active.empty() || active.front() != &context.pair.baseline) break;
    record.begin_edge(edge);
    const std::size_t problems = record.result().problems.size();
    try {
      verify_edge(context, record, edge, start);
      if (record.result().problems.size() == problems) record.result().edges.emplace_back(edge.name);
    } catch (const Unsupported& reason) {
      record.warn(fmt::format("{} was left out: {}", record.edge(), reason.what()));
    }
  }
  record.end_edges();
}

}  // namespace aisp::run
