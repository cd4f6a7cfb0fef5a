// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "pair/session.hpp"
#include "run/child/context.hpp"
#include "run/child/record.hpp"
#include "run/child/timing/samples.hpp"

namespace aisp::run {

// Executes what was timed with CUPTI recording, and fails variants by what no stopwatch sees. Returns what the probe's work takes
// by CUPTI; `assumed` where that is 0, on the host and without CUPTI. A stopwatch that records itself is gone afterwards.
ProbeWork audit(const Context& context, Record& record, Apparatus& apparatus, Start start, const Samples& samples,
                const ProbeWork& assumed);

// Judges the samples: times without the stopwatch's own, the figures derived from them, speedups, the best variant, and the
// checks that can void them.
void judge(const Context& context, Record& record, pair::Session& session, const Samples& samples,
           const measure::Correction& correction);

}  // namespace aisp::run
