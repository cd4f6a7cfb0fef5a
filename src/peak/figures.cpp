// SPDX-License-Identifier: Apache-2.0
#include "peak/figures.hpp"

#include <algorithm>
#include <array>

namespace aisp::peak {
namespace {

constexpr Unit bytes = Unit::bytes_per_second, flop = Unit::flop_per_second, time = Unit::seconds;

constexpr std::array figures = {
    Known{figure_id::hbm_read, "HBM read", bytes},
    Known{figure_id::hbm_write, "HBM write", bytes},
    Known{figure_id::hbm_copy, "HBM copy", bytes},
    Known{figure_id::hbm_triad, "HBM triad", bytes},
    Known{figure_id::l2_read, "L2 read", bytes},
    Known{figure_id::shared_read, "shared memory read", bytes},
    Known{"fp64", "FP64", flop},
    Known{"fp64_tensor", "FP64 tensor", flop},
    Known{"fp32", "FP32", flop},
    Known{"tf32", "TF32", flop},
    Known{"bf16", "BF16", flop},
    Known{"fp16", "FP16", flop},
    Known{"fp8", "FP8", flop},
    Known{"int8", "INT8", flop},
    Known{figure_id::host_to_device, "host to device", bytes},
    Known{figure_id::device_to_host, "device to host", bytes},
    Known{figure_id::both_directions, "both at once", bytes},
    Known{figure_id::peer_copy, "peer copy engine", bytes},
    Known{figure_id::peer_pull, "peer pull by SMs", bytes},
    Known{figure_id::all_reduce, "NCCL all-reduce bus", bytes},
    Known{figure_id::kernel_launch, "kernel launch", time},
    Known{figure_id::graph_launch, "graph launch", time},
    Known{figure_id::event_record, "event record", time},
    Known{figure_id::synchronize, "launch and synchronize", time},
    Known{figure_id::empty_kernel, "empty kernel", time},
    Known{figure_id::graph_node, "kernel after kernel in a graph", time},
    Known{figure_id::host_read, "host memory read", bytes},
    Known{figure_id::host_write, "host memory write", bytes},
    Known{figure_id::host_copy, "host memory copy", bytes},
};

}  // namespace

std::string_view name_of(Unit unit) {
  constexpr std::array<std::string_view, 3> names = {"B/s", "FLOP/s", "s"};
  return names.at(static_cast<std::size_t>(unit));
}

std::span<const Known> known_figures() { return figures; }

const Known* find_known(std::string_view id) {
  const auto found = std::find_if(figures.begin(), figures.end(), [&](const Known& known) { return known.id == id; });
  return found == figures.end() ? nullptr : &*found;
}

Key key_of(const machine::Gpu& gpu, const std::string& driver) {
  const double limit_w = gpu.condition ? gpu.condition->power_limit_w.value_or(0) : 0;
  return {.of = gpu.uuid, .model = gpu.name, .driver = driver, .power_limit_w = limit_w};
}

Key key_of(const machine::Host& host) { return {.of = std::string{key_of_host}, .model = host.cpu, .cpus = host.cpus_usable}; }

const Figure* find_measured(const std::vector<Figure>& among, std::string_view id) {
  const auto found = std::ranges::find_if(among, [&](const Figure& figure) { return figure.id == id && figure.measured(); });
  return found == among.end() ? nullptr : &*found;
}

}  // namespace aisp::peak
