// SPDX-License-Identifier: Apache-2.0
#include "peak/table.hpp"

#include <algorithm>
#include <array>

#include "machine/ceilings.hpp"
#include "machine/gpu_specs.hpp"
#include "peak/figures.hpp"

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

// Figures of the link to the host, with how many of its directions they load at once.
struct HostLink {
  std::string_view id;
  double directions;
};
constexpr std::array host_links{HostLink{figure_id::host_to_device, 1}, HostLink{figure_id::device_to_host, 1},
                                HostLink{figure_id::both_directions, 2}};
constexpr std::array of_memory{figure_id::hbm_read, figure_id::hbm_write, figure_id::hbm_copy, figure_id::hbm_triad};
constexpr std::array of_peers{figure_id::peer_copy, figure_id::peer_pull, figure_id::all_reduce};

// Figures that were recorded on a chip of the kind, beside the rates of its math.
struct RecordedRate {
  std::string_view id;
  double machine::RecordedCeilings::*value;
};
constexpr std::array recorded_rates{RecordedRate{figure_id::hbm_copy, &machine::RecordedCeilings::copy_bytes_s},
                                    RecordedRate{figure_id::hbm_read, &machine::RecordedCeilings::read_bytes_s},
                                    RecordedRate{figure_id::host_to_device, &machine::RecordedCeilings::host_to_device_bytes_s},
                                    RecordedRate{figure_id::device_to_host, &machine::RecordedCeilings::device_to_host_bytes_s},
                                    RecordedRate{figure_id::peer_copy, &machine::RecordedCeilings::peer_bytes_s},
                                    RecordedRate{figure_id::peer_pull, &machine::RecordedCeilings::peer_pull_bytes_s},
                                    RecordedRate{figure_id::graph_node, &machine::RecordedCeilings::launch_s}};

}  // namespace

std::optional<Reference> vendor_figure(const machine::Gpu& gpu, std::string_view id) {
  const auto link = std::ranges::find(host_links, id, &HostLink::id);
  if (link != host_links.end()) return known(machine::theoretical_peaks(gpu).pcie_bytes_s * link->directions, "link rate");
  const machine::GpuSpec* const spec = gpu.mig ? nullptr : machine::spec_of_reported(gpu.name);
  if (spec == nullptr) return std::nullopt;
  if (std::ranges::find(of_memory, id) != of_memory.end()) return stated(spec->memory_bytes_s);
  // Sheets count both directions.
  if (std::ranges::find(of_peers, id) != of_peers.end()) return stated(spec->link_bytes_s, 0.5);
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
  const auto rate = std::ranges::find(recorded_rates, id, &RecordedRate::id);
  if (rate != recorded_rates.end()) return known(recorded->*rate->value, source);
  if (id == figure_id::all_reduce)
    return known(recorded->all_reduce_bytes_s, source + " with " + std::string{recorded->all_reduce_by});
  return std::nullopt;
}

}  // namespace aisp::peak
