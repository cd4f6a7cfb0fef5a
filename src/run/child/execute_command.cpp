// SPDX-License-Identifier: Apache-2.0
#include "run/child/child.hpp"

#include <cuda_profiler_api.h>
#include <fmt/format.h>
#include <aisp/check.hpp>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.hpp"
#include "evidence/json.hpp"
#include "measure/execution.hpp"
#include "pair/all_variants.hpp"
#include "pair/session.hpp"
#include "run/child/environment.hpp"
#include "run/child/profiling/profiler.hpp"
#include "run/wire/request.hpp"

namespace aisp::run {
namespace {

const Variant& find(const Pair& pair, const std::string& name) {
  const std::vector<const Variant*> all = pair::all_variants(pair);
  const auto found = std::ranges::find_if(all, [&](const Variant* variant) { return variant->name == name; });
  if (found == all.end()) throw base::Error{base::Exit::usage, fmt::format("the pair has no variant '{}'", name)};
  return **found;
}

void execute(const Pair& pair, const Request& request, const Variant& variant) {
  const Environment environment{request.gpus};
  if (environment.gpus().empty()) throw base::Error{base::Exit::unfit, "only pairs on a GPU are executed for profilers"};
  pair::Session session{pair,
                        {.gpus = environment.gpus(),
                         .seed = request.seed,
                         .scale = request.scale * environment.memory_scale(),
                         .sizes = request.sizes,
                         .reproducible = request.reproducible,
                         .scratch_parent = request.scratch_parent}};
  // Uses no gate: Nsight Compute waits for each kernel that it replays.
  measure::Executor executor{session, {.start = Start::immediate}};
  measure::Capture capture{.digest = false};
  session.refill(request.seed);
  session.prepare(variant);
  executor.make_ready(variant, capture);
  watch_ranges(session);
  check(cudaProfilerStart());
  {
    // Tools show the ranges that begin while they record.
    const profile::Scope pair_range{request.target}, variant_range{std::string{variant.name}};
    executor.perform(variant, capture, {});
  }
  check(cudaProfilerStop());
}

}  // namespace

int execute_main(const std::string& request_text, const std::string& name) {
  const Request request = evidence::parse_json(request_text, "the request").get<Request>();
  const pair::Entry& entry = find_pair(request.target);
  execute(*entry.pair, request, find(*entry.pair, name));
  return static_cast<int>(base::Exit::good);
}

}  // namespace aisp::run
