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
  Start start = Start::released;  // from which all variants could be executed
};

// Calls `verify` with `start` and, where a variant cannot be released with its work queued, once more with an immediate start.
Verified verify_from(Start start, Record& record, const std::function<std::vector<verify::Outcome>(Start)>& verify);

// With the run's seed, at the timed shape and, before that, at the small one of a pair that has one. The outcomes are those at
// the timed shape, of the variants that passed: only these are timed. Nothing when the pair failed.
std::optional<Verified> verify_first(const Context& context, Record& record, pair::Session& session);

// The same with other inputs, which must change the outputs of `first`. Returns the start that holds from here on.
std::optional<Start> verify_again(const Context& context, Record& record, pair::Session& session, const Verified& first);

// Verifies the pair at the sizes of its edges, each in a session of its own; none where somebody set sizes, because edges are of
// the pair's own. `start`: from which its variants were verified at the timed shape. Failures go to the record.
void verify_edges(const Context& context, Stages& stages, Record& record, Start start);

}  // namespace aisp::run
