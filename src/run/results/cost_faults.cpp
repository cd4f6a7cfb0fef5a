// SPDX-License-Identifier: Apache-2.0
#include "run/results/cost_faults.hpp"

#include <fmt/format.h>

#include <cmath>
#include <string_view>
#include <vector>

namespace aisp::run {
namespace {

struct Amount {
  std::string_view name;
  double value;
  bool of_the_device;
};

std::vector<Amount> amounts(const Cost& cost) {
  std::vector<Amount> all{{"flops", cost.flops, false},
                          {"bytes", cost.bytes, true},
                          {"l2_bytes", cost.l2_bytes, true},
                          {"shared_wavefronts", cost.shared_wavefronts, true},
                          {"issue_slots", cost.issue_slots, true},
                          {"special_functions", cost.special_functions, true},
                          {"host_to_device", cost.host_to_device, true},
                          {"device_to_host", cost.device_to_host, true},
                          {"peer_bytes", cost.peer_bytes, true},
                          {"host_bytes", cost.host_bytes, false},
                          {"dependent_kernels", cost.dependent_kernels, true},
                          {"seconds", cost.seconds, false}};
  for (const MoreMath& more : cost.more_math) all.push_back({"flops of more math", more.flops, false});
  return all;
}

}  // namespace

std::optional<std::string> impossible_cost(const Cost& cost, Device device) {
  bool any = false;
  for (const Amount& amount : amounts(cost)) {
    if (!std::isfinite(amount.value) || amount.value < 0)
      return fmt::format("its declared cost has {:g} {}", amount.value, amount.name);
    if (amount.of_the_device && amount.value > 0 && device == Device::host)
      return fmt::format("its declared cost has {:g} {}, but it runs on the host", amount.value, amount.name);
    any = any || amount.value > 0;
  }
  for (const Cost& phase : cost.phases)
    if (auto fault = impossible_cost(phase, device)) return "in a phase " + *fault;
  if (!cost.phases.empty() && any) return "its declared cost has phases, and amounts beside them";
  if (!any && cost.phases.empty()) return "its declared cost is nothing at all";
  return std::nullopt;
}

}  // namespace aisp::run
