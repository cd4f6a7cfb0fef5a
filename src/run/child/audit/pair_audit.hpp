// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "pair/session.hpp"
#include "run/child/context.hpp"
#include "run/child/record.hpp"
#include "run/child/timing/samples.hpp"

namespace aisp::run {

// Executes the timed variants with CUPTI recording, and fails them by findings that no stopwatch sees. Returns the duration of
// the probe's work by CUPTI; `assumed` where that is 0, on the host and without CUPTI. A stopwatch that records itself is
// destroyed.
ProbeWork audit(const Context& context, Record& record, Resources& resources, Start start, const Samples& samples,
                const ProbeWork& assumed);

// Judges the samples: times without the stopwatch's own, the figures derived from them, speedups, the best variant, and the
// checks that can void them.
void judge(const Context& context, Record& record, pair::Session& session, const Samples& samples,
           const measure::Correction& correction);

}  // namespace aisp::run
