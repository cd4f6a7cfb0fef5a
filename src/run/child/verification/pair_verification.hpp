// SPDX-License-Identifier: Apache-2.0
// Verifies the variants of a pair and records the failures.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "pair/session.hpp"
#include "run/child/context.hpp"
#include "run/child/record.hpp"
#include "run/child/stages.hpp"
#include "verify/verifier.hpp"

namespace aisp::run {

struct Verified {
  std::vector<verify::Outcome> outcomes;
  Start start = Start::released;  // the start from which all variants could be executed
};

// Calls `verify` with `start` and, if a variant cannot be released with its work queued, again with an immediate start.
Verified verify_from(Start start, Record& record, const std::function<std::vector<verify::Outcome>(Start)>& verify);

// Verifies with the run's seed at the timed shape and, before that, at the pair's small shape if it has one. Returns the outcomes
// at the timed shape of the variants that passed: only these are timed. Nothing if the pair failed.
std::optional<Verified> verify_first(const Context& context, Record& record, pair::Session& session);

// Verifies again with other inputs, which must change the outputs of `first`. Returns the start to use from now on.
std::optional<Start> verify_again(const Context& context, Record& record, pair::Session& session, const Verified& first);

// Verifies the pair at the sizes of its edges, each in a session of its own; none if the user set sizes, because edges belong to
// the pair's own sizes. `start`: from which its variants were verified at the timed shape. Failures go to the record.
void verify_edges(const Context& context, Stages& stages, Record& record, Start start);

}  // namespace aisp::run
