// SPDX-License-Identifier: Apache-2.0
#include "run/cost_faults.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string_view>

namespace aisp::run {
namespace {

struct Amount {
  std::string_view name;
  double value;
  bool of_the_device;
};

std::array<Amount, 8> amounts(const Cost& cost) {
  return {{{"flops", cost.flops, false},
           {"bytes", cost.bytes, true},
           {"host_to_device", cost.host_to_device, true},
           {"device_to_host", cost.device_to_host, true},
           {"peer_bytes", cost.peer_bytes, true},
           {"host_bytes", cost.host_bytes, false},
           {"dependent_kernels", cost.dependent_kernels, true},
           {"seconds", cost.seconds, false}}};
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
  if (!any) return "its declared cost is nothing at all";
  return std::nullopt;
}

}  // namespace aisp::run
