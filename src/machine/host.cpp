// SPDX-License-Identifier: Apache-2.0
#include "machine/host.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "base/system/files.hpp"
#include "base/text.hpp"

namespace aisp::machine {
namespace {

namespace fs = std::filesystem;

template <class T>
std::optional<T> parse(std::string_view text) {
  T value{};
  const std::string_view trimmed = base::trim(text);
  const auto [end, error] = std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), value);
  if (error != std::errc{} || end == trimmed.data()) return std::nullopt;
  return value;
}

// The value behind "KEY<separator>" at the beginning of a line.
std::string field(std::string_view text, std::string_view key, char separator) {
  for (const std::string& line : base::split(text, '\n')) {
    const std::size_t at = line.find(separator);
    if (at != std::string::npos && base::trim(std::string_view{line}.substr(0, at)) == key)
      return std::string{base::trim(std::string_view{line}.substr(at + 1))};
  }
  return {};
}

std::uint64_t kilobytes(std::string_view text, std::string_view key) {
  return parse<std::uint64_t>(field(text, key, ':')).value_or(0) * 1024;
}

// The folders of this process's control group and of all above it, as far as they are visible.
std::vector<fs::path> group_folders(const fs::path& root, const std::string& controller) {
  std::vector<fs::path> folders;
  const std::string groups = base::try_read_file(root / "proc/self/cgroup").value_or("");
  for (const std::string& line : base::split(groups, '\n')) {
    const std::vector<std::string> parts = base::split(line, ':');
    if (parts.size() < 3) continue;
    const bool unified = parts[1].empty();
    const std::vector<std::string> controllers = base::split(parts[1], ',');
    if (!unified && std::find(controllers.begin(), controllers.end(), controller) == controllers.end()) continue;
    const fs::path mount = unified ? root / "sys/fs/cgroup" : root / "sys/fs/cgroup" / controller;
    for (fs::path group = parts[2]; group.has_relative_path(); group = group.parent_path())
      folders.push_back(mount / group.relative_path());
  }
  folders.push_back(root / "sys/fs/cgroup");
  folders.push_back(root / "sys/fs/cgroup" / controller);
  return folders;
}

double quota_of(const fs::path& folder) {
  const std::vector<std::string> unified = base::split(read_word(folder / "cpu.max"), ' ');
  const auto positive = [](std::string_view text) { return std::max(0.0, parse<double>(text).value_or(0)); };
  if (unified.size() == 2 && positive(unified[1]) > 0) return positive(unified[0]) / positive(unified[1]);
  const double quota = positive(read_word(folder / "cpu.cfs_quota_us"));
  const double period = positive(read_word(folder / "cpu.cfs_period_us"));
  return period > 0 ? quota / period : 0;
}

struct MemoryLimit {
  std::uint64_t limit = 0, used = 0;
};

std::optional<MemoryLimit> memory_limit(const fs::path& root) {
  std::optional<MemoryLimit> tightest;
  constexpr std::uint64_t unlimited = std::uint64_t{1} << 60;  // what version 1 shows as "no limit" is above this
  for (const fs::path& folder : group_folders(root, "memory"))
    for (const auto& [limit_file, used_file] :
         {std::pair{"memory.max", "memory.current"}, {"memory.limit_in_bytes", "memory.usage_in_bytes"}}) {
      const auto limit = parse<std::uint64_t>(read_word(folder / limit_file));
      if (!limit || *limit >= unlimited || (tightest && tightest->limit <= *limit)) continue;
      tightest = MemoryLimit{*limit, parse<std::uint64_t>(read_word(folder / used_file)).value_or(0)};
    }
  return tightest;
}

int usable_cpus(const fs::path& root) {
  const std::string list = field(base::try_read_file(root / "proc/self/status").value_or(""), "Cpus_allowed_list", ':');
  if (!list.empty()) return static_cast<int>(parse_cpu_list(list).size());
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

int online_cpus(const fs::path& root, std::string_view cpuinfo) {
  const auto list = parse_cpu_list(read_word(root / "sys/devices/system/cpu/online"));
  if (!list.empty()) return static_cast<int>(list.size());
  int count = 0;
  for (const std::string& line : base::split(cpuinfo, '\n')) count += line.starts_with("processor");
  return count;
}

std::vector<NumaNode> numa_nodes(const fs::path& root) {
  std::vector<NumaNode> nodes;
  for (const int id : parse_cpu_list(read_word(root / "sys/devices/system/node/online"))) {
    const fs::path folder = root / "sys/devices/system/node" / ("node" + std::to_string(id));
    const std::string prefix = "Node " + std::to_string(id) + " MemTotal";
    nodes.push_back({id, parse_cpu_list(read_word(folder / "cpulist")),
                     kilobytes(base::try_read_file(folder / "meminfo").value_or(""), prefix)});
  }
  return nodes;
}

struct ProcessTimes {
  int parent = 0;
  std::uint64_t user = 0;  // its own and that of children that it waited for, in ticks
};

// "PID (name) S PPID ... utime stime cutime cstime ...", fields 4, 14 and 16; the name may hold anything, so the last ')' ends
// it.
std::optional<ProcessTimes> process_times(const fs::path& file) {
  const std::string text = base::try_read_file(file).value_or("");
  const std::size_t close = text.rfind(')');
  if (close == std::string::npos || close + 2 > text.size()) return std::nullopt;
  const std::vector<std::string> fields = base::split(std::string_view{text}.substr(close + 2), ' ');
  constexpr std::size_t first = 3, parent = 4, user = 14, user_of_children = 16;
  if (fields.size() <= user_of_children - first) return std::nullopt;
  const auto number = [&](std::size_t field) { return parse<std::uint64_t>(fields[field - first]).value_or(0); };
  return ProcessTimes{static_cast<int>(number(parent)), number(user) + number(user_of_children)};
}

// Returns the ticks of a process and all its descendants.
std::uint64_t own_ticks(const fs::path& root, int pid) {
  std::multimap<int, int> children;
  std::map<int, std::uint64_t> user;
  std::error_code ignored;
  for (fs::directory_iterator entry{root / "proc", ignored}, end; !ignored && entry != end; entry.increment(ignored)) {
    const auto number = base::parse_number<int>(entry->path().filename().string());
    if (!number) continue;
    if (const auto times = process_times(entry->path() / "stat")) {
      children.emplace(times->parent, *number);
      user[*number] = times->user;
    }
  }
  std::uint64_t sum = 0;
  std::vector<int> open{pid};
  while (!open.empty()) {
    const int process = open.back();
    open.pop_back();
    sum += user[process];
    const auto [first, last] = children.equal_range(process);
    for (auto child = first; child != last; ++child) open.push_back(child->second);
    children.erase(first, last);  // so that a circle, which processes that come and go can seem to form, has an end
  }
  return sum;
}

std::string system_name(const fs::path& root) {
  std::string name = field(base::try_read_file(root / "etc/os-release").value_or(""), "PRETTY_NAME", '=');
  std::erase(name, '"');
  return name;
}

// "48K", "32M"
std::uint64_t size_bytes(std::string_view text) {
  const int shift = text.ends_with("K") ? 10 : text.ends_with("M") ? 20 : 0;
  if (shift > 0) text.remove_suffix(1);
  return base::parse_number<std::uint64_t>(text).value_or(0) << shift;
}

// Adds a cache, or another instance to one that has the same level, type and size.
void add_cache(std::vector<CpuCache>& caches, int level, const std::filesystem::path& folder, const std::string& cpus) {
  CpuCache found{level, read_word(folder / "type"), size_bytes(read_word(folder / "size")), {}};
  auto same = std::find_if(caches.begin(), caches.end(), [&](const CpuCache& other) {
    return std::tie(other.level, other.type, other.bytes) == std::tie(found.level, found.type, found.bytes);
  });
  if (same == caches.end()) same = caches.insert(caches.end(), std::move(found));
  if (std::find(same->shared_by.begin(), same->shared_by.end(), cpus) == same->shared_by.end()) same->shared_by.push_back(cpus);
}

}  // namespace

std::string read_word(const std::filesystem::path& path) {
  return std::string{base::trim(base::try_read_file(path).value_or(""))};
}

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  for (const std::string& part : base::split(base::trim(text), ',')) {
    const std::size_t dash = part.find('-');
    const auto first = parse<int>(std::string_view{part}.substr(0, dash));
    const auto last = dash == std::string::npos ? first : parse<int>(std::string_view{part}.substr(dash + 1));
    if (!first || !last || *last - *first > 65536) continue;
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::string cpu_list_text(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    if (!text.empty()) text += ",";
    text += std::to_string(cpus[i]);
    if (end - i > 1) text += "-" + std::to_string(cpus[end - 1]);
    i = end;
  }
  return text;
}

std::string detect_container(const fs::path& root) {
  std::error_code ignored;
  const std::string version = base::try_read_file(root / "proc/version").value_or("");
  // gVisor's kernel calls itself by a fixed build date, or by name.
  if (version.find("gvisor") != std::string::npos || version.find("Sun Jan 10 15:06:54 PST 2016") != std::string::npos)
    return "gvisor";
  const std::string groups = base::try_read_file(root / "proc/1/cgroup").value_or("") +
                             base::try_read_file(root / "proc/self/cgroup").value_or("") +
                             base::try_read_file(root / "proc/self/mountinfo").value_or("");
  if (groups.find("kubepods") != std::string::npos || fs::exists(root / "var/run/secrets/kubernetes.io", ignored))
    return "kubernetes";
  if (fs::exists(root / "run/.containerenv", ignored)) return "podman";
  if (fs::exists(root / ".dockerenv", ignored) || groups.find("/docker") != std::string::npos) return "docker";
  if (fs::exists(root / ".singularity.d", ignored)) return "apptainer";
  if (groups.find("/lxc") != std::string::npos) return "lxc";
  return {};
}

std::string detect_virtualization(const fs::path& root) {
  const std::string product =
      read_word(root / "sys/class/dmi/id/sys_vendor") + " " + read_word(root / "sys/class/dmi/id/product_name");
  for (const auto& [mark, name] : {std::pair{"QEMU", "kvm"},
                                   {"KVM", "kvm"},
                                   {"VMware", "vmware"},
                                   {"VirtualBox", "virtualbox"},
                                   {"Microsoft Corporation Virtual", "hyper-v"},
                                   {"Google Compute Engine", "google compute engine"},
                                   {"Amazon EC2", "ec2"},
                                   {"Xen", "xen"}})
    if (product.find(mark) != std::string::npos) return name;
  const std::string release = read_word(root / "proc/sys/kernel/osrelease");
  if (base::lower(release).find("microsoft") != std::string::npos) return "wsl";
  const bool guest =
      base::try_read_file(root / "proc/cpuinfo", std::size_t{16} << 20).value_or("").find(" hypervisor") != std::string::npos;
  // Firecracker has no firmware tables and boots its guests with these words.
  const std::string boot = base::try_read_file(root / "proc/cmdline").value_or("");
  if (guest && boot.find("reboot=k") != std::string::npos && boot.find("panic=1") != std::string::npos) return "firecracker";
  return guest ? "virtual machine" : "";
}

double read_cpu_quota(const fs::path& root) {
  double tightest = 0;
  for (const fs::path& folder : group_folders(root, "cpu"))
    if (const double quota = quota_of(folder); quota > 0 && (tightest == 0 || quota < tightest)) tightest = quota;
  return tightest;
}

std::optional<std::uint64_t> read_memory_limit(const fs::path& root) {
  const auto limit = memory_limit(root);
  return limit ? std::optional{limit->limit} : std::nullopt;
}

GroupEvents read_group_events(const fs::path& root) {
  GroupEvents events;
  const auto number = [](const std::string& text, const char* key) {
    return parse<std::uint64_t>(field(text, key, ' ')).value_or(0);
  };
  for (const fs::path& folder : group_folders(root, "cpu")) {
    const std::string cpu = base::try_read_file(folder / "cpu.stat").value_or("");
    if (const std::uint64_t throttled = number(cpu, "nr_throttled");
        throttled >= events.throttled && number(cpu, "nr_periods") > 0)
      events = {.periods = number(cpu, "nr_periods"), .throttled = throttled};
  }
  for (const fs::path& folder : group_folders(root, "memory"))
    events.killed = std::max(events.killed, number(base::try_read_file(folder / "memory.events").value_or(""), "oom_kill"));
  for (const fs::path& folder : group_folders(root, "pids"))
    if (const auto most = parse<std::uint64_t>(read_word(folder / "pids.max")); most && *most > 0)
      events.most_processes = events.most_processes == 0 ? *most : std::min(events.most_processes, *most);
  return events;
}

std::optional<CpuTimes> read_cpu_times(const fs::path& root, int pid) {
  // "cpu  user nice system idle iowait irq softirq steal guest guest_nice": the first line, of all CPUs.
  const std::string text = base::try_read_file(root / "proc/stat").value_or("");
  std::vector<std::uint64_t> ticks;
  for (const std::string& word : base::split(text.substr(0, text.find('\n')), ' ')) {
    if (word.empty() || word == "cpu") continue;
    const auto value = parse<std::uint64_t>(word);
    if (!value) return std::nullopt;
    ticks.push_back(*value);
  }
  constexpr std::size_t user = 0, nice = 1, system = 2, irq = 5, softirq = 6, steal = 7;
  if (ticks.size() <= steal) return std::nullopt;
  CpuTimes times{.programs = ticks[user] + ticks[nice], .stolen = ticks[steal]};
  times.busy = times.programs + ticks[system] + ticks[irq] + ticks[softirq];
  times.all = std::accumulate(ticks.begin(), ticks.begin() + steal + 1, std::uint64_t{0});
  times.own = own_ticks(root, pid == 0 ? ::getpid() : pid);
  return times;
}

std::string stolen_time(const CpuTimes& before, const CpuTimes& after) {
  constexpr double noticeable_percent = 1;
  if (after.stolen < before.stolen || after.busy < before.busy) return {};
  const auto stolen = static_cast<double>(after.stolen - before.stolen);
  const double asked = stolen + static_cast<double>(after.busy - before.busy);
  const double percent = asked > 0 ? 100 * stolen / asked : 0;
  if (percent < noticeable_percent) return {};
  return fmt::format("the hypervisor gave {:.0f} % of the CPU time that this machine asked for to others", percent);
}

std::string time_of_others(const CpuTimes& before, const CpuTimes& after) {
  constexpr double noticeable_percent = 1;
  constexpr std::uint64_t least_ticks = 5;  // fewer are a coarse clock's error
  if (after.all <= before.all || after.programs < before.programs || after.own < before.own) return {};
  const std::uint64_t programs = after.programs - before.programs, own = after.own - before.own;
  if (programs < own + least_ticks) return {};
  const double percent = 100 * static_cast<double>(programs - own) / static_cast<double>(after.all - before.all);
  if (percent < noticeable_percent) return {};
  return fmt::format("other programs had {:.0f} % of this machine's CPU time", percent);
}

int pci_numa_node(const fs::path& root, const std::string& pci) {
  return parse<int>(read_word(root / "sys/bus/pci/devices" / base::lower(pci) / "numa_node")).value_or(-1);
}

std::string read_driver_version(const fs::path& root) {
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue ...": the first word of digits and dots
  for (const std::string& word : base::split(base::try_read_file(root / "proc/driver/nvidia/version").value_or(""), ' '))
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos) return word;
  return {};
}

Host read_host(const fs::path& root) {
  Host host;
  utsname names{};
  ::uname(&names);
  host.hostname = read_word(root / "proc/sys/kernel/hostname");
  host.kernel = "Linux " + read_word(root / "proc/sys/kernel/osrelease") + " " + names.machine;
  host.system = system_name(root);
  const std::string cpuinfo = base::try_read_file(root / "proc/cpuinfo", std::size_t{64} << 20).value_or("");
  host.cpu = field(cpuinfo, "model name", ':');
  host.container = detect_container(root);
  host.virtualization = detect_virtualization(root);
  host.cpus_online = online_cpus(root, cpuinfo);
  host.cpus_usable = usable_cpus(root);
  host.cpu_quota = read_cpu_quota(root);
  const std::string memory = base::try_read_file(root / "proc/meminfo").value_or("");
  host.memory_bytes = kilobytes(memory, "MemTotal");
  host.memory_available_bytes = kilobytes(memory, "MemAvailable");
  if (const auto limit = memory_limit(root)) {
    host.memory_bytes = std::min(host.memory_bytes, limit->limit);
    host.memory_available_bytes = std::min(host.memory_available_bytes, limit->limit - std::min(limit->limit, limit->used));
  }
  host.numa = numa_nodes(root);
  return host;
}

std::vector<CpuCache> read_cpu_caches(const std::filesystem::path& root) {
  std::vector<CpuCache> caches;
  for (const int cpu : parse_cpu_list(read_word(root / "sys/devices/system/cpu/online"))) {
    const auto folder = root / "sys/devices/system/cpu" / ("cpu" + std::to_string(cpu)) / "cache";
    std::error_code error;
    for (std::filesystem::directory_iterator entry{folder, error}, end; !error && entry != end; entry.increment(error)) {
      const auto level = base::parse_number<int>(read_word(entry->path() / "level"));
      if (!level) continue;
      const std::string sharers = read_word(entry->path() / "shared_cpu_list");
      add_cache(caches, *level, entry->path(), sharers.empty() ? std::to_string(cpu) : sharers);
    }
  }
  std::stable_sort(caches.begin(), caches.end(),
                   [](const CpuCache& a, const CpuCache& b) { return std::tie(a.level, a.type) < std::tie(b.level, b.type); });
  return caches;
}

std::uint64_t last_level_cache_bytes(const std::filesystem::path& root) {
  const std::vector<CpuCache> caches = read_cpu_caches(root);
  return caches.empty() ? 0 : caches.back().bytes * caches.back().shared_by.size();
}

}  // namespace aisp::machine
