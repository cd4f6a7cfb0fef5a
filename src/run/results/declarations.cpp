// SPDX-License-Identifier: Apache-2.0
#include "run/results/declarations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "machine/ceilings.hpp"

namespace aisp::run {
namespace {

constexpr double most_times_the_error = 1000;  // largest ratio of a limit to the error

struct Amount {
  std::string_view name;
  double value;
  bool of_gpu;
};

std::vector<Amount> amounts(const Cost& cost) {
  std::vector<Amount> all{{"flops", cost.flops, false}};
  for (const machine::CostAmount& each : machine::cost_amounts()) all.push_back({each.name, cost.*each.amount, each.of_gpu});
  for (const MoreMath& more : cost.more_math) all.push_back({"flops of more math", more.flops, false});
  return all;
}

}  // namespace

evidence::DeclaredCost declared(const Cost& declared_cost) {
  using evidence::ByteKind;
  const Cost cost = machine::whole(declared_cost);
  evidence::DeclaredCost result{.flops = 0, .bytes = cost.bytes, .math = {}};
  for (const MoreMath& each : machine::math_of(cost)) {
    result.math = result.flops > 0 ? "several" : machine::name_of(each.math);
    result.flops += each.flops;
  }
  if (cost.bytes > 0) {
    result.bytes_of = ByteKind::device_memory;
    return result;
  }
  const std::array<std::pair<double, ByteKind>, 4> kinds{{{cost.host_bytes, ByteKind::host_memory},
                                                          {cost.host_to_device, ByteKind::host_to_device},
                                                          {cost.device_to_host, ByteKind::device_to_host},
                                                          {cost.peer_bytes, ByteKind::peer}}};
  for (const auto& [bytes, kind] : kinds) {
    if (bytes <= 0) continue;
    result.bytes += bytes;
    result.bytes_of = result.bytes_of == ByteKind::none ? kind : ByteKind::several;
  }
  return result;
}

std::optional<std::string> impossible_cost(const Cost& cost, Device device) {
  bool any = false;
  for (const Amount& amount : amounts(cost)) {
    if (!std::isfinite(amount.value) || amount.value < 0)
      return fmt::format("its declared cost has {:g} {}", amount.value, amount.name);
    if (amount.of_gpu && amount.value > 0 && device == Device::host)
      return fmt::format("its declared cost has {:g} {}, but it runs on the host", amount.value, amount.name);
    any = any || amount.value > 0;
  }
  for (const Cost& phase : cost.phases)
    if (auto fault = impossible_cost(phase, device)) return "in a phase " + *fault;
  if (!cost.phases.empty() && any) return "its declared cost has phases, and amounts beside them";
  if (!any && cost.phases.empty()) return "its declared cost is nothing at all";
  return std::nullopt;
}

std::optional<std::string> loose_limit(const evidence::VariantResult& variant, const Tolerances& tolerances) {
  if (!variant.accuracy || variant.accuracy->samples == 0) return std::nullopt;
  const evidence::Accuracy& found = *variant.accuracy;
  // The accuracy reported is that of the output nearest to its limit.
  const auto chosen = [&](const Tolerance& tolerance) {
    return tolerance.kind == Tolerance::Kind::limits && tolerance.relative_l2 == found.limit_relative_l2;
  };
  if (std::ranges::none_of(tolerances, chosen)) return std::nullopt;
  if (!(found.limit_relative_l2 > most_times_the_error * found.relative_l2)) return std::nullopt;
  return fmt::format(
      "{}: its tolerance allows a relative L2 error of {:.2g}, and {:.2g} was found; a limit near that would catch "
      "more",
      variant.name, found.limit_relative_l2, found.relative_l2);
}

}  // namespace aisp::run
