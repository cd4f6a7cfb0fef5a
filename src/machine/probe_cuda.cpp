// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "base/text.hpp"
#include "machine/host.hpp"
#include "machine/nvml.hpp"

namespace aisp::machine {
namespace {

std::string uuid_text(const cudaUUID_t& uuid, bool mig) {
  std::string text = mig ? "MIG-" : "GPU-";
  for (std::size_t i = 0; i < 16; ++i) {
    std::array<char, 3> hex{};
    std::snprintf(hex.data(), hex.size(), "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += hex.data();
  }
  return text;
}

std::vector<int> read_attributes(int device) {
  std::vector<int> values(static_cast<std::size_t>(cudaDevAttrMax), 0);
  for (std::size_t i = 1; i < values.size(); ++i)
    if (cudaDeviceGetAttribute(&values[i], static_cast<cudaDeviceAttr>(i), device) != cudaSuccess) values[i] = 0;
  return values;
}

std::vector<bool> read_peers(int device, int count) {
  std::vector<bool> peers(static_cast<std::size_t>(count), false);
  for (int other = 0; other < count; ++other) {
    int can = 0;
    if (other != device && cudaDeviceCanAccessPeer(&can, device, other) == cudaSuccess)
      peers[static_cast<std::size_t>(other)] = can != 0;
  }
  return peers;
}

Gpu read_gpu(int device, int count) {
  Gpu gpu;
  gpu.ordinal = device;
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device) == cudaSuccess) {
    gpu.name = properties.name;
    gpu.mig = gpu.name.find(" MIG ") != std::string::npos;
    gpu.uuid = uuid_text(properties.uuid, gpu.mig);
    gpu.memory_bytes = properties.totalGlobalMem;
  }
  gpu.attributes = read_attributes(device);
  gpu.sm = gpu.attribute(cudaDevAttrComputeCapabilityMajor) * 10 + gpu.attribute(cudaDevAttrComputeCapabilityMinor);
  gpu.sm_count = gpu.attribute(cudaDevAttrMultiProcessorCount);
  gpu.l2_bytes = static_cast<std::uint64_t>(gpu.attribute(cudaDevAttrL2CacheSize));
  gpu.shared_memory_optin_bytes = static_cast<std::uint64_t>(gpu.attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  gpu.clock_khz = gpu.attribute(cudaDevAttrClockRate);
  gpu.memory_clock_khz = gpu.attribute(cudaDevAttrMemoryClockRate);
  gpu.memory_bus_bits = gpu.attribute(cudaDevAttrGlobalMemoryBusWidth);
  gpu.integrated = gpu.attribute(cudaDevAttrIntegrated) != 0;
  std::array<char, 32> pci{};
  if (cudaDeviceGetPCIBusId(pci.data(), static_cast<int>(pci.size()), device) == cudaSuccess) gpu.pci = base::lower(pci.data());
  gpu.numa_node = pci_numa_node("/", gpu.pci);
  gpu.peers = read_peers(device, count);
  if (const auto management = Nvml::get().device(gpu.uuid)) gpu.condition = management->condition();
  return gpu;
}

void explain(Machine& machine, cudaError_t status) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string newer = "install NVIDIA driver 580 or newer";
  if (machine.driver_cuda_version == 0) {
    machine.cuda_error =
        machine.driver_version.empty() ? "no NVIDIA driver" : "the NVIDIA driver's library libcuda.so.1 is missing";
    machine.cuda_advice = newer + ", or start the container with its GPUs (docker run --gpus all)";
  } else if (status == cudaErrorInsufficientDriver) {
    machine.cuda_error = "the driver supports CUDA " + cuda_version_text(machine.driver_cuda_version) + ", this program needs " +
                         cuda_version_text(machine.runtime_cuda_version);
    machine.cuda_advice = newer;
  } else if ((status == cudaErrorNoDevice || status == cudaSuccess) && visible != nullptr &&
             fault_of_visible_devices(visible).empty()) {
    machine.cuda_error = "CUDA_VISIBLE_DEVICES=" + std::string{visible} + " hides every GPU";
    machine.cuda_advice = "unset CUDA_VISIBLE_DEVICES";
  } else if (visible != nullptr && !fault_of_visible_devices(visible).empty()) {
    machine.cuda_error = "CUDA_VISIBLE_DEVICES=" + std::string{visible} + " " + fault_of_visible_devices(visible);
    machine.cuda_advice = "name each GPU once, by its number or the begin of its UUID (nvidia-smi -L)";
  } else if (status == cudaErrorNoDevice || status == cudaSuccess) {
    machine.cuda_error = "the driver sees no GPU";
    machine.cuda_advice = "look at nvidia-smi; in a container, start it with its GPUs (docker run --gpus all)";
  } else {
    machine.cuda_error = std::string{cudaGetErrorString(status)} + " (" + cudaGetErrorName(status) + ")";
    machine.cuda_advice = status == cudaErrorSystemNotReady ? "start nvidia-fabricmanager" : "look at nvidia-smi and dmesg";
  }
}

}  // namespace

// CUDA ends its reading at the first word that is none, as -1, which people use to hide GPUs.
std::string fault_of_visible_devices(std::string_view value) {
  std::set<std::string> seen;
  for (const std::string& field : base::split(value, ',')) {
    const std::string word{base::trim(field)};
    const bool is_number = !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number && !word.starts_with("GPU-") && !word.starts_with("MIG-")) return "";
    if (!seen.insert(word).second) return "names " + word + " twice";
  }
  return "";
}

Machine probe_here() {
  Machine machine;
  machine.host = read_host();
  machine.driver_version = Nvml::get().driver_version().value_or(read_driver_version("/"));
  machine.nvml_error = Nvml::get().error();
  cudaRuntimeGetVersion(&machine.runtime_cuda_version);
  if (cudaDriverGetVersion(&machine.driver_cuda_version) != cudaSuccess) machine.driver_cuda_version = 0;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    explain(machine, status);
    return machine;
  }
  for (int device = 0; device < count; ++device) machine.gpus.push_back(read_gpu(device, count));
  return machine;
}

}  // namespace aisp::machine
