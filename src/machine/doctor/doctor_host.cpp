// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/system/files.hpp"
#include "base/system/places.hpp"
#include "base/text.hpp"
#include "machine/doctor/doctor.hpp"
#include "machine/host.hpp"

namespace aisp::machine {
namespace {

namespace fs = std::filesystem;

// The soft limit of a line of /proc/self/limits: nothing when the file does not tell, ~0 for "unlimited".
std::optional<std::uint64_t> limit(const fs::path& root, std::string_view name) {
  for (const std::string& line : base::split(base::try_read_file(root / "proc/self/limits").value_or(""), '\n')) {
    if (!line.starts_with(name)) continue;
    const std::string_view value = base::trim(std::string_view{line}.substr(name.size()));
    if (value.starts_with("unlimited")) return ~std::uint64_t{0};
    std::uint64_t number = 0;
    if (std::from_chars(value.data(), value.data() + value.size(), number).ec == std::errc{}) return number;
  }
  return std::nullopt;
}

struct Space {
  double total = 0, available = 0;
};
std::optional<Space> disk_space(const fs::path& folder) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0) return std::nullopt;
  const auto block = static_cast<double>(status.f_frsize);
  return Space{block * static_cast<double>(status.f_blocks), block * static_cast<double>(status.f_bavail)};
}

void system_facts(const Host& host, Findings& findings) {
  const std::string system = host.system.empty() ? "an unnamed system" : host.system;
  findings.push_back({"system", Level::info, system + (host.kernel.empty() ? "" : ", ") + host.kernel, ""});
  if (!host.container.empty() || !host.virtualization.empty()) {
    std::string what = host.container.empty()        ? host.virtualization
                       : host.virtualization.empty() ? host.container
                                                     : host.container + " in " + host.virtualization;
    findings.push_back({"container", Level::info, what + "; clocks cannot be locked and some counters may be missing", ""});
  }
}

void processors(const Host& host, Findings& findings) {
  std::string what = host.cpu + (host.cpu.empty() ? "" : ", ") + std::to_string(host.cpus_usable) + " of " +
                     std::to_string(host.cpus_online) + " CPUs usable";
  const double quota = host.cpu_quota;
  if (quota > 0 && quota < host.cpus_usable)
    findings.push_back(
        {"CPUs", Level::warning, what + ", held to the time of " + base::significant(quota) + " by the container's quota",
         "raise the CPU limit (docker --cpus, Kubernetes limits.cpu) or pin with a cpuset; host pairs are throttled in bursts"});
  else if (host.cpus_usable < host.cpus_online)
    findings.push_back(
        {"CPUs", Level::info, what, "the affinity mask or cpuset hides the others; taskset or --cpuset-cpus changes it"});
  else findings.push_back({"CPUs", Level::ok, what, ""});
}

// Reports limits of this process's control group, which a container or a batch job has and its host has not.
void control_group(const Host& host, const fs::path& root, Findings& findings) {
  const GroupEvents events = read_group_events(root);
  std::vector<std::string> parts;
  if (host.cpu_quota > 0)
    parts.push_back(base::significant(host.cpu_quota) + " of " + std::to_string(host.cpus_online) + " CPUs' time");
  if (const auto granted = read_memory_limit(root); granted && *granted < host.memory_bytes)
    parts.push_back(base::human_bytes(static_cast<double>(*granted)) + " of " +
                    base::human_bytes(static_cast<double>(host.memory_bytes)) + " memory");
  if (events.most_processes > 0) parts.push_back(std::to_string(events.most_processes) + " processes and threads");
  std::string what = parts.empty() ? "no limit of CPU time, memory or processes" : "at most " + base::join(parts, ", ");
  if (events.throttled > 0)
    what += "; the CPU quota was used up in " + std::to_string(events.throttled) + " of " + std::to_string(events.periods) +
            " periods";
  if (events.killed > 0) what += "; " + base::plural(events.killed, "program") + " killed for memory";
  constexpr std::uint64_t few_processes = 1024;
  const bool few = events.most_processes > 0 && events.most_processes < few_processes;
  if (events.throttled > 0 || events.killed > 0 || few)
    findings.push_back({"control group", Level::warning, what,
                        "raise the limits (docker --cpus, --memory, --pids-limit; Kubernetes limits); ch03:kubernetes and "
                        "ch03:docker show what they cost, and aisp compare sets a run outside beside one inside"});
  else findings.push_back({"control group", Level::ok, what, ""});
}

void numa(const Machine& machine, const fs::path& root, Findings& findings) {
  const std::vector<NumaNode>& nodes = machine.host.numa;
  if (nodes.size() < 2) {
    findings.push_back({"NUMA", Level::ok, nodes.empty() ? "not reported by this kernel" : "one node", ""});
    return;
  }
  std::vector<std::string> parts;
  for (const NumaNode& node : nodes) parts.push_back(std::to_string(node.id) + ": CPUs " + cpu_list_text(node.cpus));
  findings.push_back({"NUMA", Level::ok, base::plural(nodes.size(), "node") + " (" + base::join(parts, "; ") + ")", ""});
  if (read_word(root / "proc/sys/kernel/numa_balancing") == "1")
    findings.push_back({"NUMA balancing", Level::warning, "on; the kernel moves pages while host pairs run",
                        "sudo sysctl kernel.numa_balancing=0 while measuring"});
}

// "0.52 0.58 0.59 1/600 12345": processes that ran or wanted to, on average over the last minute, then over longer.
void load(const Host& host, const fs::path& root, Findings& findings) {
  const std::string text = read_word(root / "proc/loadavg");
  const auto wanting = base::parse_number<double>(std::string_view{text}.substr(0, text.find(' ')));
  if (!wanting || host.cpus_online <= 0) {
    findings.push_back({"load", Level::info, "not reported by this kernel", ""});
    return;
  }
  const std::string what = base::significant(*wanting) + " of " +
                           base::plural(static_cast<std::size_t>(host.cpus_online), "CPU") + " wanted in the last minute";
  // A twentieth of the machine, and at least one CPU: a shell and a daemon now and then disturb nothing.
  if (*wanting >= std::max(1.0, 0.05 * host.cpus_online))
    findings.push_back({"load", Level::warning, what,
                        "other programs slow host pairs and launches down: end them (top shows which), or wait a minute"});
  else findings.push_back({"load", Level::ok, what, ""});
}

void memory(const Host& host, const fs::path& root, Findings& findings) {
  std::string what = base::human_bytes(static_cast<double>(host.memory_available_bytes)) + " of " +
                     base::human_bytes(static_cast<double>(host.memory_bytes)) + " available";
  if (const auto granted = read_memory_limit(root); granted && *granted < host.memory_bytes)
    what += ", " + base::human_bytes(static_cast<double>(*granted)) + " granted by the container's limit";
  if (host.memory_available_bytes < (std::uint64_t{4} << 30))
    findings.push_back({"memory", Level::warning, what,
                        "free some memory or raise the container's limit; pairs with large host buffers are skipped"});
  else findings.push_back({"memory", Level::ok, what, ""});
  const std::string pages = read_word(root / "sys/kernel/mm/transparent_hugepage/enabled");
  const std::size_t open = pages.find('['), close = pages.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) {
    findings.push_back({"transparent huge pages", Level::info, "not reported by this kernel", ""});
    return;
  }
  const std::string mode = pages.substr(open + 1, close - open - 1);
  if (mode == "never")
    findings.push_back({"transparent huge pages", Level::warning, mode + "; pairs about huge pages show nothing",
                        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"});
  else findings.push_back({"transparent huge pages", Level::ok, mode, ""});
}

void governor(const fs::path& root, Findings& findings) {
  const std::string name = read_word(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (name.empty()) findings.push_back({"CPU governor", Level::info, "not reported here (virtual machine or container)", ""});
  else if (name == "performance" || name == "schedutil") findings.push_back({"CPU governor", Level::ok, name, ""});
  else
    findings.push_back({"CPU governor", Level::warning, name + "; CPU clocks ramp up during measurements",
                        "sudo " + base::script("system-tuning.sh") + " --apply --only governor; --reset undoes it"});
}

void limits(const fs::path& root, Findings& findings) {
  const auto locked = limit(root, "Max locked memory"), files = limit(root, "Max open files");
  constexpr std::uint64_t enough_locked = std::uint64_t{64} << 20, enough_files = 1024;
  if (locked && *locked < enough_locked)
    findings.push_back({"locked memory", Level::warning, base::human_bytes(static_cast<double>(*locked)) + " may be locked",
                        "ulimit -l unlimited (docker --ulimit memlock=-1); io_uring and mlock pairs may be refused, "
                        "cudaHostAlloc is not affected"});
  else if (locked)
    findings.push_back({"locked memory", Level::ok,
                        *locked == ~std::uint64_t{0} ? "unlimited" : base::human_bytes(static_cast<double>(*locked)), ""});
  if (files && *files < enough_files)
    findings.push_back({"open files", Level::warning, std::to_string(*files), "ulimit -n 4096; NCCL and many GPUs need more"});
  else if (files)
    findings.push_back({"open files", Level::ok, *files == ~std::uint64_t{0} ? "unlimited" : std::to_string(*files), ""});
}

void disks(const Surroundings& surroundings, Findings& findings) {
  if (const auto shared = disk_space(surroundings.root / "dev/shm")) {
    const std::string what = base::human_bytes(shared->total);
    if (shared->total < 1e9)
      findings.push_back(
          {"/dev/shm", Level::warning, what, "docker --shm-size=8g (Kubernetes: an emptyDir of medium Memory); NCCL needs it"});
    else findings.push_back({"/dev/shm", Level::ok, what, ""});
  } else {
    findings.push_back({"/dev/shm", Level::warning, "missing", "mount a tmpfs there; NCCL and shared-memory pairs need it"});
  }
  fs::path folder = surroundings.artifacts.empty() ? fs::path{"."} : surroundings.artifacts;
  std::error_code ignored;
  while (!fs::exists(folder, ignored) && folder.has_parent_path() && folder != folder.parent_path())
    folder = folder.parent_path();
  if (!fs::exists(folder, ignored)) folder = ".";
  // Run folders are made there, or below what is made there.
  if (!fs::is_directory(folder, ignored) || ::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    findings.push_back({"disk", Level::warning,
                        folder.string() + (fs::is_directory(folder, ignored) ? " cannot be written" : " is no folder"),
                        "choose another --artifacts-dir: runs keep their results there"});
    return;
  }
  const auto disk = disk_space(folder);
  if (!disk) return;
  const std::string what = base::human_bytes(disk->available) + " free for artifacts";
  if (disk->available < 2e9)
    findings.push_back({"disk", Level::warning, what, "aisp clean removes old runs, or choose another --artifacts-dir"});
  else findings.push_back({"disk", Level::ok, what, ""});
}

void counters(const Machine& machine, const fs::path& root, Findings& findings) {
  if (machine.gpus.empty()) return;
  const std::string parameters = base::try_read_file(root / "proc/driver/nvidia/params").value_or("");
  const bool admin_only = parameters.find("RmProfilingAdminOnly: 1") != std::string::npos;
  if (parameters.find("RmProfilingAdminOnly") == std::string::npos)
    findings.push_back(
        {"performance counters", Level::info, "the driver does not say who may read them; Nsight Compute will", ""});
  else if (admin_only)
    findings.push_back({"performance counters", Level::info,
                        "for administrators only; Nsight Compute needs root, CUPTI's timeline does not",
                        "options nvidia NVreg_RestrictProfilingToAdminUsers=0 in /etc/modprobe.d, then reload the driver"});
  else findings.push_back({"performance counters", Level::ok, "for all users", ""});
}

}  // namespace

void examine_host(const Machine& machine, const Surroundings& surroundings, Findings& findings) {
  system_facts(machine.host, findings);
  processors(machine.host, findings);
  control_group(machine.host, surroundings.root, findings);
  numa(machine, surroundings.root, findings);
  load(machine.host, surroundings.root, findings);
  memory(machine.host, surroundings.root, findings);
  governor(surroundings.root, findings);
  limits(surroundings.root, findings);
  disks(surroundings, findings);
  counters(machine, surroundings.root, findings);
}

}  // namespace aisp::machine
