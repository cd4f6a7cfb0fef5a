// SPDX-License-Identifier: Apache-2.0
#include "evidence/expectations/fingerprint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/digest.hpp"
#include "base/hardware_key.hpp"
#include "base/text.hpp"

namespace aisp::evidence {
namespace {

// Equal machines differ in the memory that kernels and firmware reserve.
constexpr double telling_memory_change = 0.05;
constexpr double telling_power_change = 0.01;

constexpr std::uint64_t gib = std::uint64_t{1} << 30;

const ManifestGpu* find_gpu(const Manifest& manifest, const std::string& uuid) {
  for (const ManifestGpu& gpu : manifest.gpus)
    if (gpu.uuid == uuid) return &gpu;
  return nullptr;
}

bool differ_by_share(double a, double b, double share) { return std::abs(a - b) > share * std::max(a, b); }

std::string quota_text(const std::optional<double>& quota) {
  return quota ? fmt::format("a quota of {:g} CPUs", *quota) : "no CPU quota";
}

std::string or_none(const std::string& text) { return text.empty() ? "none" : text; }

std::string short_id(const std::string& text) { return base::sha256_hex(text).substr(0, 12); }

// "CUDA 13.0" of 13000.
std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

std::string hardware_key(const PairResult& pair, const Manifest& manifest) {
  if (pair.device == Device::host) return std::string{base::hardware_of_hosts};
  std::vector<std::string> names;
  for (const std::string& uuid : pair.gpus) {
    const ManifestGpu* gpu = find_gpu(manifest_of(pair, manifest), uuid);
    if (gpu == nullptr) return {};
    names.push_back(gpu->name);
  }
  return base::hardware_key(names);
}

Fingerprint fingerprint_of(const PairResult& pair, const Manifest& run) {
  const Manifest& manifest = manifest_of(pair, run);
  Fingerprint fingerprint{.hardware = hardware_key(pair, manifest),
                          .cpu = manifest.cpu,
                          .cpus_usable = manifest.cpus_usable,
                          .numa_nodes = manifest.numa_nodes,
                          .cpu_quota = manifest.cpu_quota,
                          .hypervisor = manifest.virtualization,
                          .memory_bytes = (manifest.memory_bytes + gib / 2) / gib * gib};
  if (pair.device == Device::host || pair.gpus.empty()) return fingerprint;
  if (const ManifestGpu* gpu = find_gpu(manifest, pair.gpus.front())) {
    fingerprint.gpu = gpu->name;
    fingerprint.driver = manifest.driver_version;
    fingerprint.cuda = version_text(manifest.runtime_cuda_version);
    fingerprint.power_limit_w = gpu->power_limit_w;
    fingerprint.libraries = manifest.library_versions;
  }
  return fingerprint;
}

std::vector<std::string> host_differences(const Fingerprint& recorded, const Fingerprint& here) {
  if (recorded.cpus_usable <= 0 || here.cpus_usable <= 0) return {"nobody wrote down the host that it was recorded on"};
  std::vector<std::string> differences;
  if (recorded.cpu != here.cpu) differences.push_back(fmt::format("{}, now {}", or_none(recorded.cpu), or_none(here.cpu)));
  if (recorded.cpus_usable != here.cpus_usable)
    differences.push_back(
        fmt::format("{}, now {}", base::plural(static_cast<std::size_t>(recorded.cpus_usable), "usable CPU"), here.cpus_usable));
  if (recorded.numa_nodes != here.numa_nodes)
    differences.push_back(fmt::format(
        "{}, now {}", base::plural(static_cast<std::size_t>(std::max(0, recorded.numa_nodes)), "NUMA node"), here.numa_nodes));
  if (recorded.cpu_quota != here.cpu_quota)
    differences.push_back(fmt::format("{}, now {}", quota_text(recorded.cpu_quota), quota_text(here.cpu_quota)));
  if (recorded.hypervisor != here.hypervisor)
    differences.push_back(fmt::format("hypervisor {}, now {}", or_none(recorded.hypervisor), or_none(here.hypervisor)));
  if (differ_by_share(static_cast<double>(recorded.memory_bytes), static_cast<double>(here.memory_bytes), telling_memory_change))
    differences.push_back(fmt::format("{} GiB of memory, now {}", recorded.memory_bytes / gib, here.memory_bytes / gib));
  return differences;
}

std::vector<std::string> gpu_differences(const Fingerprint& recorded, const Fingerprint& here) {
  std::vector<std::string> differences;
  const auto compare = [&](const char* what, const std::string& then, const std::string& now) {
    if (!then.empty() && !now.empty() && then != now) differences.push_back(fmt::format("{} {}, now {}", what, then, now));
  };
  compare("driver", recorded.driver, here.driver);
  compare("CUDA", recorded.cuda, here.cuda);
  if (recorded.power_limit_w > 0 && here.power_limit_w > 0 &&
      differ_by_share(recorded.power_limit_w, here.power_limit_w, telling_power_change))
    differences.push_back(fmt::format("power limit {:.0f} W, now {:.0f} W", recorded.power_limit_w, here.power_limit_w));
  for (const auto& [name, version] : recorded.libraries)
    if (const auto found = here.libraries.find(name); found != here.libraries.end())
      compare(name.c_str(), version, found->second);
  return differences;
}

std::string id_of(const Fingerprint& f) {
  std::string text = fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n", f.hardware, f.cpu, f.cpus_usable, f.numa_nodes,
                                 f.hypervisor, f.memory_bytes, f.gpu, f.driver, f.cuda, f.power_limit_w);
  if (f.cpu_quota) text += fmt::format("quota {}\n", *f.cpu_quota);
  for (const auto& [name, version] : f.libraries) text += fmt::format("{}={}\n", name, version);
  return short_id(text);
}

std::vector<std::string> gpu_ids(const PairResult& pair) {
  std::vector<std::string> ids;
  for (const std::string& uuid : pair.gpus) ids.push_back(short_id(uuid));
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<std::string> gpu_ids(const Manifest& manifest) {
  std::vector<std::string> ids;
  for (const ManifestGpu& gpu : manifest.gpus) ids.push_back(short_id(gpu.uuid));
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::optional<std::string> other_host(const Fingerprint& here, const std::vector<std::string>& gpus_here,
                                      const std::vector<std::string>& those) {
  if (here.hypervisor.empty() || gpus_here.empty()) return std::nullopt;
  const bool known =
      std::ranges::any_of(those, [&](const std::string& id) { return std::ranges::find(gpus_here, id) != gpus_here.end(); });
  if (known) return std::nullopt;
  return "a virtual machine of this kind with other GPUs, which does not tell its processor";
}

}  // namespace aisp::evidence
