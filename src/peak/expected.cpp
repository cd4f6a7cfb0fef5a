// SPDX-License-Identifier: Apache-2.0
#include "peak/expected.hpp"

#include <array>

#include "machine/ceilings.hpp"
#include "machine/gpu_specs.hpp"

namespace aisp::peak {
namespace {

using machine::Fact;
using machine::NumberType;

std::optional<Reference> stated(const Fact& fact, double part = 1) {
  if (!fact.known() || fact.value <= 0) return std::nullopt;
  return Reference{fact.value * part, machine::citation(fact), fact.doubt};
}

std::optional<Reference> known(double value, const std::string& source) {
  if (value <= 0) return std::nullopt;
  return Reference{value, source, {}};
}

bool begins(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

}  // namespace

std::optional<Reference> vendor_figure(const machine::Gpu& gpu, std::string_view id) {
  const bool link = id == "host_to_device" || id == "device_to_host" || id == "both_directions";
  if (link) {
    const double directions = id == "both_directions" ? 2 : 1;
    return known(machine::theoretical_peaks(gpu).pcie_bytes_s * directions, "link rate");
  }
  const machine::GpuSpec* const spec = gpu.mig ? nullptr : machine::spec_of_reported(gpu.name);
  if (spec == nullptr) return std::nullopt;
  if (begins(id, "hbm_")) return stated(spec->memory_bytes_s);
  // Sheets count both directions.
  if (begins(id, "peer_") || id == "all_reduce") return stated(spec->link_bytes_s, 0.5);
  for (std::size_t i = 0; i < machine::rate_kinds; ++i)
    if (machine::name_of(static_cast<NumberType>(i)) == id) return stated(spec->rate(static_cast<NumberType>(i)));
  return std::nullopt;
}

std::optional<Reference> recorded_figure(const machine::Gpu& gpu, std::string_view id) {
  const machine::RecordedCeilings* const recorded = gpu.mig ? nullptr : machine::recorded_of_reported(gpu.name);
  if (recorded == nullptr) return std::nullopt;
  const std::string source = "recorded on " + std::string{recorded->on};
  for (std::size_t i = 0; i < machine::math_kinds; ++i)
    if (machine::name_of(static_cast<Math>(i)) == id) return known(recorded->flops_s[i], source);
  if (id == "hbm_copy") return known(recorded->copy_bytes_s, source);
  if (id == "hbm_read") return known(recorded->read_bytes_s, source);
  if (id == "host_to_device") return known(recorded->host_to_device_bytes_s, source);
  if (id == "device_to_host") return known(recorded->device_to_host_bytes_s, source);
  if (id == "peer_copy") return known(recorded->peer_bytes_s, source);
  if (id == "peer_pull") return known(recorded->peer_pull_bytes_s, source);
  if (id == "all_reduce") return known(recorded->all_reduce_bytes_s, source + " with " + std::string{recorded->all_reduce_by});
  if (id == "graph_node") return known(recorded->launch_s, source);
  return std::nullopt;
}

}  // namespace aisp::peak
