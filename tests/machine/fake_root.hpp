// SPDX-License-Identifier: Apache-2.0
// A root folder with files of the test's own in place of /proc and /sys, and machines to go with it.
#pragma once
#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "base/system/files.hpp"
#include "machine/machine.hpp"

namespace aisp::machine {

class FakeRoot {
 public:
  FakeRoot& file(const std::string& path, std::string_view content) {
    base::write_atomically(scratch_.path() / path, content);
    return *this;
  }
  const std::filesystem::path& path() const { return scratch_.path(); }

 private:
  base::ScratchDirectory scratch_{"aisp-root-"};
};

inline Gpu h200(int ordinal = 0) {
  Gpu gpu{.ordinal = ordinal,
          .uuid = "GPU-00000000-0000-0000-0000-00000000000" + std::to_string(ordinal),
          .name = "NVIDIA H200",
          .sm = 90,
          .memory_bytes = 150'120'000'000,
          .sm_count = 132,
          .l2_bytes = 62'914'560,
          .shared_memory_optin_bytes = 232'448,
          .clock_khz = 1'980'000,
          .memory_clock_khz = 3'201'000,
          .memory_bus_bits = 6144,
          .pci = "0000:04:00.0"};
  gpu.attributes.assign(static_cast<std::size_t>(cudaDevAttrMax), 0);
  gpu.attributes[cudaDevAttrClusterLaunch] = 1;
  gpu.attributes[cudaDevAttrCooperativeLaunch] = 1;
  return gpu;
}

inline Gpu other_gpu(const std::string& name, int sm, double memory_gb = 80) {
  Gpu gpu = h200();
  gpu.name = name;
  gpu.sm = sm;
  gpu.memory_bytes = static_cast<std::uint64_t>(memory_gb * 1e9);
  return gpu;
}

inline Machine machine_with(std::vector<Gpu> gpus) {
  Machine machine{
      .gpus = std::move(gpus), .driver_cuda_version = 13000, .runtime_cuda_version = 13000, .driver_version = "580.95.05"};
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
    machine.gpus[i].ordinal = static_cast<int>(i);
    machine.gpus[i].peers.assign(machine.gpus.size(), true);
    machine.gpus[i].peers[i] = false;
  }
  machine.host.cpus_online = machine.host.cpus_usable = 16;
  machine.host.memory_bytes = std::uint64_t{128} << 30;
  machine.host.memory_available_bytes = std::uint64_t{100} << 30;
  return machine;
}

inline Machine machine_without_gpu() {
  Machine machine = machine_with({});
  machine.driver_cuda_version = 0;
  machine.driver_version.clear();
  machine.cuda_error = "no NVIDIA driver";
  machine.cuda_advice = "install NVIDIA driver 580 or newer";
  return machine;
}

}  // namespace aisp::machine
