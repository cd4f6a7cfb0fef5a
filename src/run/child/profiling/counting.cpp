// SPDX-License-Identifier: Apache-2.0
#include "run/child/profiling/counting.hpp"

#include <fmt/format.h>
#include <aisp/check.hpp>

#include <algorithm>

#include "base/system/clock.hpp"
#include "profile/ranges.hpp"
#include "profile/tools.hpp"

namespace aisp::run {

Counting::Counting(pair::Session& session, profile::MetricSet set)
    : session_{session},
      executor_{session, {.start = Start::immediate}},
      profiler_{session.gpu_ordinals().at(0), profile::metric_names(set)} {
  int bytes = 0;
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, session.gpu_ordinals().at(0)));
  l2_bytes_ = bytes;
}

evidence::Counters Counting::count(const Variant& variant) {
  int executions = 0;
  measure::Capture capture{.digest = false};
  const auto before = [&] {
    executor_.make_ready(variant, capture);
    ++executions;
  };
  const auto execute = [&] { executor_.perform(variant, capture, {}); };
  const auto drain = [&] {
    executor_.cold()->drain();
    session_.synchronize_all();
  };
  const std::vector<profile::MetricValues> values = profiler_.collect(before, {{"execution", execute}, {"drain", drain}});
  evidence::Counters counters = profile::counters_from(values[0]);
  const evidence::Counters drained = profile::counters_from(values[1]);
  counters.source = "CUPTI";
  counters.passes = executions;
  counters.l2_bytes = l2_bytes_;
  counters.drained = true;
  // Draining only reads, so all writes are the execution's.
  if (counters.dram_write_bytes && drained.dram_write_bytes) *counters.dram_write_bytes += *drained.dram_write_bytes;
  return counters;
}

bool waits_for_other_gpus(const Pair& pair, const Variant& variant) {
  const auto uses_collectives = [](const Needs& needs) {
    return std::ranges::find(needs.libraries, Library::nccl) != std::end(needs.libraries);
  };
  return pair.needs.gpus > 1 && (uses_collectives(pair.needs) || uses_collectives(variant.needs));
}

void profile_counters(pair::Session& session, Record& record, profile::MetricSet set, double limit_s) {
  const double began_s = base::monotonic_s();
  try {
    Counting counting{session, set};
    double longest_s = 0;
    for (const Variant* variant : record.active()) {
      if (waits_for_other_gpus(session.pair(), *variant)) {
        record.lose(
            evidence::LostKind::counters,
            fmt::format("no counters of {}: NCCL's kernels wait for those of other GPUs, and one GPU is counted", variant->name));
        continue;
      }
      const profile::Scope range{std::string{variant->name}};
      const double start_s = base::monotonic_s();
      // A stage that runs out of time would cost the pair its result.
      if (start_s - began_s + 2 * longest_s > limit_s) {
        record.lose(evidence::LostKind::counters, fmt::format("no counters of {}: the stage's time was up", variant->name));
        continue;
      }
      try {
        session.prepare(*variant);
        record.of(variant->name).counters = counting.count(*variant);
      } catch (const CudaError&) {
        throw;
      } catch (const profile::CountersRefused&) {
        throw;
      } catch (const std::exception& reason) {
        // A kernel that waits for the host cannot run under a profiler. The pass was not ended, so no other can follow.
        return record.lose(evidence::LostKind::counters,
                           fmt::format("no counters of {} and what follows it: {}", variant->name, reason.what()));
      }
      longest_s = std::max(longest_s, base::monotonic_s() - start_s);
    }
  } catch (const profile::CountersRefused& reason) {
    record.lose(evidence::LostKind::counters_refused, fmt::format("no counters: {}", reason.what()));
  } catch (const Unsupported& reason) {
    record.lose(evidence::LostKind::counters, fmt::format("no counters: {}", reason.what()));
  }
}

}  // namespace aisp::run
