// SPDX-License-Identifier: Apache-2.0
#include "run/wire/blank.hpp"

#include "base/system/clock.hpp"
#include "pair/all_variants.hpp"
#include "pair/code.hpp"
#include "pair/host_dependent.hpp"
#include "pair/sizes.hpp"

namespace aisp::run {

evidence::Device recorded(Device device) { return device == Device::host ? evidence::Device::host : evidence::Device::gpu; }

evidence::Bound recorded(Bound bound) {
  switch (bound) {
    case Bound::memory: return evidence::Bound::memory;
    case Bound::compute: return evidence::Bound::compute;
    case Bound::latency: return evidence::Bound::latency;
    case Bound::transfer: return evidence::Bound::transfer;
    case Bound::host: return evidence::Bound::host;
  }
  return evidence::Bound::memory;
}

evidence::Start recorded(Start start) {
  return start == Start::released ? evidence::Start::released : evidence::Start::immediate;
}

evidence::Cache recorded(Cache cache) { return cache == Cache::cold ? evidence::Cache::cold : evidence::Cache::hot; }

void add_ranks(evidence::PairResult& result, const Request& request) {
  if (request.ranks > 1) result.sizes[size_of_ranks] = static_cast<std::uint64_t>(request.ranks);
  if (request.machines > 1) result.sizes[size_of_machines] = static_cast<std::uint64_t>(request.machines);
}

evidence::PairResult blank_result(const pair::Entry& entry, const Request& request) {
  evidence::PairResult result;
  result.target = entry.target();
  result.chapter = entry.chapter;
  result.name = entry.name;
  result.teaches = entry.pair->teaches;
  result.lesson = pair::lesson_of(*entry.pair);
  result.source_digest = pair::digest_on(pair::code_of(entry), request.sm);
  result.bound = recorded(entry.pair->bound);
  result.device = recorded(entry.pair->device);
  result.host_dependent = pair::host_dependent(*entry.pair) || request.mode == TimingMode::timer;
  const bool host = entry.pair->device == Device::host;
  if (!host) result.gpus = request.gpus;
  // The host has neither a stream nor an L2 to prepare.
  result.start = host ? evidence::Start::none : recorded(entry.pair->start);
  result.cache = host ? evidence::Cache::none : recorded(entry.pair->cache);
  result.timing_mode = request.mode;
  if (!entry.pair->judged_by.empty()) result.judged_by = entry.pair->judged_by;
  result.scale = request.scale;
  result.sizes = pair::sizes_in_effect(*entry.pair, request.sizes, request.scale);
  add_ranks(result, request);
  result.sizes_set = !request.sizes.empty();
  result.sweep_case = request.sweep_case;
  result.seed = request.seed;
  result.reproducible = request.reproducible;
  result.alternated = request.alternate;
  result.started_utc = base::utc_now();
  return result;
}

evidence::PairResult skipped_result(const pair::Entry& entry, const Request& request, std::string reason, std::string advice) {
  evidence::PairResult result = blank_result(entry, request);
  result.status = evidence::Status::skipped;
  result.reason = std::move(reason);
  if (!advice.empty()) result.problems.push_back({evidence::Stage::selection, "", "needs", result.reason, std::move(advice)});
  return result;
}

}  // namespace aisp::run
