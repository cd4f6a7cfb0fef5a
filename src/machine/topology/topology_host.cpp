// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "base/system/files.hpp"
#include "base/text.hpp"
#include "machine/host.hpp"
#include "machine/topology/topology.hpp"

namespace aisp::machine {
namespace {

namespace fs = std::filesystem;

std::optional<int> read_int(const fs::path& path) {
  const std::string text = read_word(path);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end != text.data() ? std::optional{value} : std::nullopt;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry{folder, error}, end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// "32K", "1024K", "32M"
std::uint64_t size_bytes(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return 0;
  const std::string_view unit{end, static_cast<std::size_t>(text.data() + text.size() - end)};
  return unit.starts_with("K") ? value << 10 : unit.starts_with("M") ? value << 20 : value;
}

fs::path cpu_folder(const fs::path& root, int cpu) { return root / "sys/devices/system/cpu" / ("cpu" + std::to_string(cpu)); }

void read_packages(const fs::path& root, const std::vector<int>& cpus, HostTopology& host) {
  std::set<int> packages;
  std::set<std::string> cores;
  for (const int cpu : cpus) {
    const fs::path folder = cpu_folder(root, cpu) / "topology";
    if (const auto package = read_int(folder / "physical_package_id")) packages.insert(*package);
    std::string siblings = read_word(folder / "core_cpus_list");
    if (siblings.empty()) siblings = read_word(folder / "thread_siblings_list");
    if (!siblings.empty()) cores.insert(siblings);
  }
  if (!packages.empty()) host.sockets = static_cast<int>(packages.size());
  if (!cores.empty()) host.cores = static_cast<int>(cores.size());
}

// Instances alike in all but the CPUs they serve are one entry.
void add_cache(std::vector<CpuCache>& caches, const CpuCache& found) {
  const auto same = std::find_if(caches.begin(), caches.end(), [&](const CpuCache& other) {
    return other.level == found.level && other.type == found.type && other.bytes == found.bytes && other.ways == found.ways;
  });
  if (same == caches.end()) return caches.push_back(found);
  const auto& cpus = found.shared_by.front();
  if (std::find(same->shared_by.begin(), same->shared_by.end(), cpus) == same->shared_by.end()) same->shared_by.push_back(cpus);
}

std::vector<CpuCache> read_caches(const fs::path& root, const std::vector<int>& cpus) {
  std::vector<CpuCache> caches;
  for (const int cpu : cpus)
    for (const std::string& name : names_in(cpu_folder(root, cpu) / "cache")) {
      const fs::path folder = cpu_folder(root, cpu) / "cache" / name;
      const auto level = read_int(folder / "level");
      if (!name.starts_with("index") || !level) continue;
      std::vector<int> sharers = parse_cpu_list(read_word(folder / "shared_cpu_list"));
      if (sharers.empty()) sharers.push_back(cpu);
      add_cache(caches, {*level,
                         read_word(folder / "type"),
                         size_bytes(read_word(folder / "size")),
                         read_int(folder / "coherency_line_size"),
                         read_int(folder / "ways_of_associativity"),
                         {sharers}});
    }
  std::stable_sort(caches.begin(), caches.end(), [](const CpuCache& a, const CpuCache& b) {
    return std::pair{a.level, a.type} < std::pair{b.level, b.type};
  });
  return caches;
}

void read_pages(const fs::path& root, HostTopology& host) {
  host.page_bytes = static_cast<std::uint64_t>(std::max(0L, ::sysconf(_SC_PAGESIZE)));
  const std::string choices = read_word(root / "sys/kernel/mm/transparent_hugepage/enabled");  // "always [madvise] never"
  const std::size_t open = choices.find('['), close = choices.find(']');
  if (open < close && close != std::string::npos) host.transparent_huge_pages = choices.substr(open + 1, close - open - 1);
  const fs::path folder = root / "sys/kernel/mm/hugepages";
  for (const std::string& name : names_in(folder)) {
    constexpr std::string_view prefix = "hugepages-";
    if (!name.starts_with(prefix) || !name.ends_with("kB")) continue;
    host.huge_pages.push_back({size_bytes(name.substr(prefix.size(), name.size() - prefix.size() - 2)) << 10,
                               read_int(folder / name / "nr_hugepages").value_or(0),
                               read_int(folder / name / "free_hugepages").value_or(0)});
  }
  std::sort(host.huge_pages.begin(), host.huge_pages.end(),
            [](const HugePages& a, const HugePages& b) { return a.page_bytes < b.page_bytes; });
}

std::vector<int> read_distances(const fs::path& root, int node) {
  std::vector<int> distances;
  const std::string text = read_word(root / "sys/devices/system/node" / ("node" + std::to_string(node)) / "distance");
  for (const std::string& word : base::split(text, ' ')) {
    int value = 0;
    if (std::from_chars(word.data(), word.data() + word.size(), value).ec == std::errc{}) distances.push_back(value);
  }
  return distances;
}

bool is_pci_address(std::string_view text) {
  return text.size() >= 12 && text[text.size() - 8] == ':' && text[text.size() - 5] == ':' && text[text.size() - 2] == '.';
}

// The last PCI device on the way to `device`: itself, or what carries it (virtio).
std::string pci_of(const fs::path& device) {
  std::error_code error;
  const fs::path real = fs::canonical(device, error);
  std::string address;
  for (const fs::path& part : real)
    if (is_pci_address(part.string())) address = part.string();
  return address;
}

std::string driver_of(const fs::path& device) {
  std::error_code error;
  const fs::path real = fs::canonical(device / "driver", error);
  return error ? std::string{} : real.filename().string();
}

std::string first_or_empty(const std::vector<std::string>& names) { return names.empty() ? std::string{} : names.front(); }

Nic read_interface(const fs::path& folder) {
  Nic nic{.name = folder.filename().string(),
          .rdma_device = first_or_empty(names_in(folder / "device/infiniband")),
          .driver = driver_of(folder / "device"),
          .state = read_word(folder / "operstate"),
          .pci = pci_of(folder / "device"),
          .numa_node = read_int(folder / "device/numa_node").value_or(-1)};
  constexpr int ethernet = 1, infiniband = 32;  // ARPHRD_*
  const int type = read_int(folder / "type").value_or(0);
  nic.kind = type == ethernet ? "ethernet" : type == infiniband ? "infiniband" : "";
  if (const auto megabits = read_int(folder / "speed"); megabits && *megabits > 0) nic.bits_s = *megabits * 1e6;
  return nic;
}

// An RDMA device without an interface of the system: "400 Gb/sec (4X NDR)" and "4: ACTIVE" are how its files speak.
Nic read_rdma_device(const fs::path& folder) {
  const fs::path port = folder / "ports/1";
  Nic nic{.name = folder.filename().string(),
          .kind = base::lower(read_word(port / "link_layer")),
          .rdma_device = folder.filename().string(),
          .driver = driver_of(folder / "device"),
          .pci = pci_of(folder / "device"),
          .numa_node = read_int(folder / "device/numa_node").value_or(-1)};
  const std::string state = read_word(port / "state");
  nic.state = std::string{base::trim(std::string_view{state}.substr(std::min(state.size(), state.find(':') + 1)))};
  const std::string rate = read_word(port / "rate");
  double gigabits = 0;
  if (std::from_chars(rate.data(), rate.data() + rate.size(), gigabits).ec == std::errc{} && gigabits > 0)
    nic.bits_s = gigabits * 1e9;
  return nic;
}

std::vector<Nic> read_nics(const fs::path& root, const std::vector<Gpu>& gpus) {
  std::vector<Nic> nics;
  std::set<std::string> with_interface;
  for (const std::string& name : names_in(root / "sys/class/net")) {
    std::error_code error;
    if (!fs::exists(root / "sys/class/net" / name / "device", error)) continue;  // loopback, bridges, tunnels
    nics.push_back(read_interface(root / "sys/class/net" / name));
    with_interface.insert(nics.back().rdma_device);
  }
  for (const std::string& name : names_in(root / "sys/class/infiniband"))
    if (!with_interface.contains(name)) nics.push_back(read_rdma_device(root / "sys/class/infiniband" / name));
  for (Nic& nic : nics) {
    if (nic.numa_node < 0 && !nic.pci.empty()) nic.numa_node = pci_numa_node(root, nic.pci);
    for (const Gpu& gpu : gpus) nic.gpu_paths.push_back(pci_path(root, nic.pci, gpu.pci));
  }
  return nics;
}

// From the host bridge ("pci0000:00") to the device.
std::vector<std::string> way_to(const fs::path& root, const std::string& pci) {
  std::vector<std::string> way;
  std::error_code error;
  const fs::path real = pci.empty() ? fs::path{} : fs::canonical(root / "sys/bus/pci/devices" / base::lower(pci), error);
  for (const fs::path& part : real)
    if (!way.empty() || part.string().starts_with("pci")) way.push_back(part.string());
  // "bus/pci/devices" is no bridge: a tree without links tells nothing.
  return way.size() > 1 && way.front() != "pci" ? way : std::vector<std::string>{};
}

}  // namespace

std::string pci_path(const fs::path& root, const std::string& a, const std::string& b) {
  const std::vector<std::string> first = way_to(root, a), second = way_to(root, b);
  if (first.empty() || second.empty()) return {};
  const auto fork = std::mismatch(first.begin(), first.end(), second.begin(), second.end());
  const auto common = fork.first - first.begin();
  if (common == 0) {
    const int node = pci_numa_node(root, a), other = pci_numa_node(root, b);
    return node < 0 || other < 0 ? "" : node == other ? "NODE" : "SYS";
  }
  if (common == 1) return "PHB";
  // Below a switch's upstream port lie its downstream port and the device.
  return std::max(first.end() - fork.first, second.end() - fork.second) <= 2 ? "PIX" : "PXB";
}

std::uint64_t last_level_cache_bytes(const fs::path& root) {
  const std::vector<CpuCache> caches = read_caches(root, parse_cpu_list(read_word(root / "sys/devices/system/cpu/online")));
  return caches.empty() ? 0 : caches.back().bytes * caches.back().shared_by.size();
}

HostTopology read_host_topology(const Host& host, const std::vector<Gpu>& gpus, const fs::path& root) {
  HostTopology topology;
  const std::vector<int> cpus = parse_cpu_list(read_word(root / "sys/devices/system/cpu/online"));
  read_packages(root, cpus, topology);
  topology.caches = read_caches(root, cpus);
  read_pages(root, topology);
  for (const NumaNode& node : host.numa) topology.numa_distances.push_back(read_distances(root, node.id));
  topology.nics = read_nics(root, gpus);
  return topology;
}

}  // namespace aisp::machine
