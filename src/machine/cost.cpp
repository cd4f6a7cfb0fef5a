// SPDX-License-Identifier: Apache-2.0
#include "machine/cost.hpp"

#include <algorithm>

namespace aisp::machine {
namespace {

void add_math(std::vector<MoreMath>& all, const MoreMath& more) {
  if (more.flops == 0) return;
  const auto found = std::ranges::find(all, more.math, &MoreMath::math);
  if (found == all.end()) all.push_back(more);
  else found->flops += more.flops;
}

constexpr double Cost::*amounts[] = {&Cost::bytes,          &Cost::l2_bytes,          &Cost::shared_wavefronts,
                                     &Cost::issue_slots,    &Cost::special_functions, &Cost::host_to_device,
                                     &Cost::device_to_host, &Cost::peer_bytes,        &Cost::host_bytes,
                                     &Cost::seconds,        &Cost::dependent_kernels};

}  // namespace

std::vector<MoreMath> math_of(const Cost& cost) {
  std::vector<MoreMath> all;
  add_math(all, {cost.flops, cost.math});
  for (const MoreMath& more : cost.more_math) add_math(all, more);
  return all;
}

Cost whole(const Cost& cost) {
  if (cost.phases.empty()) return cost;
  Cost sum;
  std::vector<MoreMath> math;
  for (const Cost& each : cost.phases) {
    const Cost phase = whole(each);
    for (double Cost::*const amount : amounts) sum.*amount += phase.*amount;
    for (const MoreMath& more : math_of(phase)) add_math(math, more);
  }
  if (math.empty()) return sum;
  sum.flops = math.front().flops;
  sum.math = math.front().math;
  sum.more_math.assign(math.begin() + 1, math.end());
  return sum;
}

}  // namespace aisp::machine
