// SPDX-License-Identifier: Apache-2.0
#include "machine/needs.hpp"

#include <aisp/libraries/cutlass.hpp>
#include <aisp/library.hpp>

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "base/text.hpp"
#include "machine/chips.hpp"
#include "machine/library/library_search.hpp"

namespace aisp::machine {
namespace {

std::string this_gpu(const Gpu& gpu) { return "this GPU (" + gpu.name + ") is " + sm_text(gpu.sm); }
std::string gigabytes(double bytes) { return base::significant(bytes / 1e9) + " GB"; }

std::string attribute_text(cudaDeviceAttr attribute) {
  switch (attribute) {
    case cudaDevAttrCooperativeLaunch: return "cooperative launches";
    case cudaDevAttrClusterLaunch: return "thread block clusters";
    case cudaDevAttrMemoryPoolsSupported: return "stream-ordered memory pools";
    case cudaDevAttrConcurrentManagedAccess: return "managed memory that CPU and GPU may use at the same time";
    case cudaDevAttrManagedMemory: return "managed memory";
    case cudaDevAttrPageableMemoryAccess: return "GPU access to pageable memory";
    case cudaDevAttrHostNativeAtomicSupported: return "native atomics between GPU and CPU";
    case cudaDevAttrMaxPersistingL2CacheSize: return "persisting lines in L2";
    case cudaDevAttrGPUDirectRDMASupported: return "GPUDirect RDMA";
    case cudaDevAttrHostRegisterSupported: return "registration of host memory";
    case cudaDevAttrCanMapHostMemory: return "mapped host memory";
    case cudaDevAttrStreamPrioritiesSupported: return "stream priorities";
    case cudaDevAttrComputePreemptionSupported: return "compute preemption";
    default: return "device attribute " + std::to_string(static_cast<int>(attribute));
  }
}

std::optional<Obstacle> unmet_by_host(const Needs& needs, const Host& host, const std::function<bool(Library)>& has_library) {
  if (needs.cpus > host.cpus_usable)
    return Obstacle{"needs " + base::plural(static_cast<std::size_t>(needs.cpus), "CPU") + ", this process may use " +
                        std::to_string(host.cpus_usable),
                    "widen its CPU affinity or use a larger machine"};
  if (needs.host_memory > host.memory_available_bytes)
    return Obstacle{"needs " + gigabytes(static_cast<double>(needs.host_memory)) + " of host memory, " +
                        gigabytes(static_cast<double>(host.memory_available_bytes)) + " are available",
                    "free some or raise the container's limit"};
  for (const Library library : needs.libraries) {
    if (library == Library::none || (has_library ? has_library(library) : SharedLibrary::available(library))) continue;
    return Obstacle{"needs " + std::string{name_of(library)} + ": " + file_names(library).front() + " not found",
                    library == Library::cutlass ? std::string{get_cutlass} : "install it or set AISP_LIBRARY_PATH to its folder"};
  }
  return std::nullopt;
}

Obstacle behind(const char* words, Obstacle obstacle) {
  obstacle.reason = words + obstacle.reason;
  return obstacle;
}

// Code with the instructions that `needs` speak of: what only one family has is in sm_90a, not in sm_90.
bool has_code_on(const Needs& needs, int sm, std::string_view built) {
  const bool specific = needs.tcgen05 || (needs.max_sm != 0 && sm >= 90);
  return specific ? has_specific_code(built, sm) : has_code(built, sm);
}

std::optional<Obstacle> unmet_tcgen05(const Gpu& gpu, std::string_view built) {
  if (const Answer answer = tcgen05_support(gpu); !answer.yes) return Obstacle{"needs tcgen05: " + answer.why, answer.advice};
  if (!has_specific_code(built, gpu.sm)) return behind("needs tcgen05: ", lacking_code(built, gpu.sm));
  return std::nullopt;
}

std::optional<Obstacle> unmet_by_gpu(const Needs& needs, const Gpu& gpu, std::string_view built) {
  if (needs.tcgen05)
    if (std::optional<Obstacle> reason = unmet_tcgen05(gpu, built)) return reason;
  if (gpu.sm < needs.min_sm)
    return Obstacle{"needs " + sm_text(needs.min_sm) + " or newer, " + this_gpu(gpu), "run it on a newer GPU"};
  if (needs.max_sm != 0 && gpu.sm > needs.max_sm)
    return Obstacle{
        "is written for " +
            (needs.min_sm == needs.max_sm ? sm_text(needs.max_sm) : sm_text(needs.min_sm) + " to " + sm_text(needs.max_sm)) +
            " alone, " + this_gpu(gpu),
        "its instructions do not exist on other families"};
  if (needs.dsmem && !has_dsmem(gpu))
    return Obstacle{"needs distributed shared memory (thread block clusters), " + this_gpu(gpu),
                    "run it on sm_90 or newer other than sm_121 (ch10:cluster_group_no_dsmem shows the way without it)"};
  if (!has_code_on(needs, gpu.sm, built)) return behind("cannot start: ", lacking_code(built, gpu.sm));
  const double memory_bytes = static_cast<double>(needs.device_memory) * memory_scale(gpu.memory_bytes);
  if (memory_bytes > static_cast<double>(gpu.memory_bytes))
    return Obstacle{"needs " + gigabytes(memory_bytes) + " of GPU memory, " + gpu.name + " has " +
                        gigabytes(static_cast<double>(gpu.memory_bytes)),
                    "run it with a smaller --scale or on a larger GPU"};
  for (const cudaDeviceAttr attribute : needs.attributes)
    if (attribute != cudaDeviceAttr{} && gpu.attribute(attribute) == 0)
      return Obstacle{"needs " + attribute_text(attribute) + ", which " + gpu.name + " does not have here",
                      "run it on another GPU or driver"};
  return std::nullopt;
}

std::optional<Obstacle> too_few_gpus(const Needs& needs, const Machine& machine, std::size_t given) {
  const auto wanted = static_cast<std::size_t>(std::max(needs.gpus, needs.ranks.least));
  if (given >= wanted) return std::nullopt;
  std::string text = "needs " + base::plural(wanted, "GPU") + (needs.peer_access ? " with peer access" : "");
  if (machine.gpus.size() >= wanted)
    return Obstacle{text + ", " + std::to_string(given) + " of " + std::to_string(machine.gpus.size()) + " may be used",
                    "give it more with --gpus"};
  return Obstacle{text + ", found " + std::to_string(machine.gpus.size()), "run it on a machine with more GPUs"};
}

std::optional<Obstacle> no_peer_access(const std::vector<const Gpu*>& used) {
  for (const Gpu* from : used)
    for (const Gpu* to : used) {
      if (from == to) continue;
      const auto index = static_cast<std::size_t>(to->ordinal);
      if (index < from->peers.size() && from->peers[index]) continue;
      return Obstacle{"needs peer access between its GPUs, GPU " + std::to_string(from->ordinal) + " cannot reach GPU " +
                          std::to_string(to->ordinal),
                      "choose GPUs that are linked (nvidia-smi topo -m), or allow peer access in this container"};
    }
  return std::nullopt;
}

struct ArchitectureEntry {
  int sm = 0;
  char kind = ' ';  // 'a': this architecture alone, 'f': its family from here on
  bool machine_code = true, ptx = true;
};

std::optional<ArchitectureEntry> parse(std::string_view word) {
  ArchitectureEntry entry;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), entry.sm);
  if (error != std::errc{}) return std::nullopt;
  word.remove_prefix(static_cast<std::size_t>(end - word.data()));
  if (!word.empty() && (word.front() == 'a' || word.front() == 'f')) {
    entry.kind = word.front();
    word.remove_prefix(1);
  }
  if (word == "-real") entry.ptx = false;
  else if (word == "-virtual") entry.machine_code = false;
  else if (!word.empty()) return std::nullopt;
  return entry;
}

// Nothing when the list does not tell.
std::optional<std::vector<ArchitectureEntry>> parse_list(std::string_view built) {
  std::vector<ArchitectureEntry> entries;
  while (!built.empty()) {
    const std::size_t comma = std::min(built.find(','), built.size());
    const std::optional<ArchitectureEntry> entry = parse(built.substr(0, comma));
    if (!entry) return std::nullopt;
    entries.push_back(*entry);
    built.remove_prefix(std::min(comma + 1, built.size()));
  }
  if (entries.empty()) return std::nullopt;
  return entries;
}

bool same_family(const ArchitectureEntry& entry, int sm) { return entry.sm / 10 == sm / 10 && entry.sm <= sm; }

bool runs_on(const ArchitectureEntry& entry, int sm) {
  if (entry.kind == 'a') return entry.sm == sm;
  if (entry.kind == 'f') return same_family(entry, sm);
  return (entry.machine_code && same_family(entry, sm)) || (entry.ptx && entry.sm <= sm);
}

}  // namespace

bool has_code(std::string_view built, int sm) {
  const auto entries = parse_list(built);
  return !entries ||
         std::any_of(entries->begin(), entries->end(), [sm](const ArchitectureEntry& entry) { return runs_on(entry, sm); });
}

bool has_specific_code(std::string_view built, int sm) {
  const auto entries = parse_list(built);
  return !entries || std::any_of(entries->begin(), entries->end(),
                                 [sm](const ArchitectureEntry& entry) { return entry.kind != ' ' && runs_on(entry, sm); });
}

Obstacle lacking_code(std::string_view built, int sm) {
  const std::string architecture = std::to_string(sm) + (sm >= 90 ? "a" : "");
  return {"this executable has no code for sm_" + architecture + " (it has " + std::string{built} + ")",
          "build one with cmake --preset all-architectures, or with -DAISP_CUDA_ARCHITECTURES=" + architecture + "-real"};
}

bool has_dsmem(const Gpu& gpu) {
  if (!chip_of(gpu.sm).dsmem || gpu.name.find("GB10") != std::string::npos) return false;
  return gpu.attributes.empty() || gpu.attribute(cudaDevAttrClusterLaunch) != 0;
}

bool has_tma(const Gpu& gpu) { return chip_of(gpu.sm).tma; }

Answer tcgen05_support(const Gpu& gpu) {
  const std::string chip = sm_text(gpu.sm), which = chip + " (" + gpu.name + ")";
  std::vector<std::string> names;
  for (const int sm : chips_with(Tcgen05::present)) names.push_back(sm_text(sm));
  const std::string last = names.back();
  names.pop_back();
  const std::string use = "use " + base::join(names, ", ") + " or " + last;
  switch (chip_of(gpu.sm).tcgen05) {
    case Tcgen05::present: return {true, chip + " has tcgen05 and tensor memory"};
    case Tcgen05::lacking_on_blackwell:
      return {false,
              which +
                  " is of the Blackwell generation but has neither tcgen05 nor tensor memory: the assembler refuses them for "
                  "this target, and its tensor cores are driven by mma.sync",
              use};
    case Tcgen05::none: return {false, which + " is older than Blackwell", use};
    case Tcgen05::unknown: break;
  }
  return {false, "nothing is known of tcgen05 on " + which, use};
}

bool has_code_for(const Needs& needs, std::string_view built) {
  std::vector<int> sms = known_chips();
  sms.push_back(needs.min_sm);  // perhaps of a later chip than those
  return std::ranges::any_of(sms, [&](int sm) {
    const bool admitted = sm >= needs.min_sm && (needs.max_sm == 0 || sm <= needs.max_sm);
    return admitted && (!needs.tcgen05 || chip_of(sm).tcgen05 == Tcgen05::present) && has_code_on(needs, sm, built);
  });
}

double memory_scale(std::uint64_t bytes) {
  // A GPU sold as 16 GB shows a little less than 16e9 bytes at times; 5 % below the name still counts.
  const double gb = static_cast<double>(bytes) / 1e9 / 0.95;
  return gb >= 16 ? 1 : gb >= 8 ? 0.5 : gb >= 4 ? 0.25 : 0.1;
}

double memory_scale(const Machine& machine, const std::vector<int>& gpus) {
  double scale = 1;
  for (const Gpu& gpu : machine.gpus)
    if (std::find(gpus.begin(), gpus.end(), gpu.ordinal) != gpus.end()) scale = std::min(scale, memory_scale(gpu.memory_bytes));
  return scale;
}

std::optional<Obstacle> unmet(const Needs& needs, Device device, const Machine& machine, const std::vector<int>& gpus,
                              const std::function<bool(Library)>& has_library, std::string_view built) {
  if (device == Device::host) return unmet_by_host(needs, machine.host, has_library);
  if (machine.gpus.empty()) {
    return Obstacle{"no CUDA device" + (machine.cuda_error.empty() ? "" : ": " + machine.cuda_error), machine.cuda_advice};
  }
  std::vector<const Gpu*> used;
  for (const int ordinal : gpus)
    for (const Gpu& gpu : machine.gpus)
      if (gpu.ordinal == ordinal) used.push_back(&gpu);
  if (std::optional<Obstacle> reason = too_few_gpus(needs, machine, used.size())) return reason;
  if (needs.ranks.most == 1) used.resize(static_cast<std::size_t>(std::max(needs.gpus, 0)));
  for (const Gpu* gpu : used)
    if (std::optional<Obstacle> reason = unmet_by_gpu(needs, *gpu, built)) return reason;
  if (needs.peer_access)
    if (std::optional<Obstacle> reason = no_peer_access(used)) return reason;
  if (needs.driver > machine.driver_cuda_version)
    return Obstacle{"needs a driver for CUDA " + cuda_version_text(needs.driver) + ", this one supports " +
                        cuda_version_text(machine.driver_cuda_version),
                    "update the NVIDIA driver"};
  return unmet_by_host(needs, machine.host, has_library);
}

}  // namespace aisp::machine
