// SPDX-License-Identifier: Apache-2.0
#include "machine/doctor/doctor.hpp"

#include <aisp/libraries/cutlass.hpp>
#include <aisp/library.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "base/text.hpp"
#include "machine/doctor/tcgen05.hpp"
#include "machine/library/library_search.hpp"
#include "machine/needs.hpp"
#include "machine/nvml.hpp"

namespace aisp::machine {
namespace {

namespace fs = std::filesystem;

constexpr int good_driver = 580, needed_cuda = 13000;

int leading_number(std::string_view text) {
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

void examine_driver(const Machine& machine, Findings& findings) {
  const std::string& version = machine.driver_version;
  if (version.empty() && machine.driver_cuda_version == 0) {
    findings.push_back(
        {"driver", machine.gpus.empty() ? Level::info : Level::warning, "no NVIDIA driver",
         "to use a GPU, install driver 580 or newer (setup.sh --with-driver), or start the container with its GPUs"});
    return;
  }
  const std::string supports =
      machine.driver_cuda_version > 0 ? ", supports CUDA " + cuda_version_text(machine.driver_cuda_version) : "";
  const std::string what = (version.empty() ? "of unknown version" : version) + supports;
  if (machine.driver_cuda_version > 0 && machine.driver_cuda_version < needed_cuda)
    findings.push_back({"driver", Level::problem, what, "install driver 580 or newer; this one cannot run CUDA 13 programs"});
  else if (!version.empty() && leading_number(version) < good_driver)
    findings.push_back({"driver", Level::warning, what, "install driver 580 or newer; older ones are untested"});
  else findings.push_back({"driver", Level::ok, what, ""});
}

void examine_runtime(const Machine& machine, Findings& findings) {
  if (machine.runtime_cuda_version == 0) return;
  const std::string what = "CUDA " + cuda_version_text(machine.runtime_cuda_version) + " runtime linked in";
  const bool too_new =
      machine.driver_cuda_version > 0 && machine.runtime_cuda_version / 1000 > machine.driver_cuda_version / 1000;
  if (too_new) findings.push_back({"runtime", Level::problem, what + ", newer than the driver", "install driver 580 or newer"});
  else findings.push_back({"runtime", Level::ok, what, ""});
}

// CUDA_VERSION of the first toolkit found.
std::string toolkit_version(const fs::path& root) {
  for (const fs::path& home : toolkit_homes(root)) {
    const std::string header = base::try_read_file(home / "include/cuda.h", std::size_t{8} << 20).value_or("");
    constexpr std::string_view mark = "#define CUDA_VERSION ";
    const std::size_t at = header.find(mark);
    if (at != std::string::npos)
      if (const int version = leading_number(base::trim(std::string_view{header}.substr(at + mark.size(), 12))); version > 0)
        return cuda_version_text(version) + " in " + home.string();
  }
  return {};
}

void examine_toolkit(const Surroundings& surroundings, Findings& findings) {
  const std::string found = surroundings.toolkit.value_or(toolkit_version(surroundings.root));
  if (found.empty())
    findings.push_back({"toolkit", Level::info, "no CUDA toolkit found", "only building aisp needs one; ./setup.sh installs it"});
  else if (leading_number(found) < 13)
    findings.push_back({"toolkit", Level::warning, found, "building aisp needs CUDA 13.0 or newer; ./setup.sh installs it"});
  else findings.push_back({"toolkit", Level::ok, found, ""});
}

// The families 12 are asked for only where others are known: an old assembler refuses everything.
void examine_assembler(const Surroundings& surroundings, Findings& findings) try {
  const auto& assembles = surroundings.assembles_tcgen05;
  if (!assembles) return;
  std::vector<std::string> accepted, refused, without;
  for (const std::string& target : targets_with(Tcgen05::present)) (assembles(target) ? accepted : refused).emplace_back(target);
  for (const std::string& target : targets_with(Tcgen05::lacking_on_blackwell))
    if (!accepted.empty()) (assembles(target) ? accepted : without).emplace_back(target);
  std::vector<std::string> parts;
  if (!accepted.empty()) parts.push_back("assembled for " + base::join(accepted, ", "));
  if (!refused.empty()) parts.push_back("refused for " + base::join(refused, ", "));
  if (!without.empty())
    parts.push_back("refused for " + base::join(without, ", ") + ", which have neither tcgen05 nor tensor memory");
  findings.push_back({"toolkit tcgen05", Level::info, base::join(parts, "; "),
                      refused.empty() ? "" : "./setup.sh installs CUDA 13.0, which knows these targets"});
} catch (const base::Error& error) {
  findings.push_back({"toolkit tcgen05", Level::warning, error.what(),
                      "aisp cannot be built with this toolkit: install it anew, or name another in CUDA_HOME"});
}

void examine_gpu_list(const Machine& machine, const Surroundings& surroundings, Findings& findings) {
  if (machine.gpus.empty()) {
    // A machine without a driver is meant to have no GPU; with one, something is wrong.
    const Level level = machine.driver_cuda_version == 0 && machine.driver_version.empty() ? Level::warning : Level::problem;
    findings.push_back({"GPUs", level, "no CUDA device" + (machine.cuda_error.empty() ? "" : ": " + machine.cuda_error),
                        (machine.cuda_advice.empty() ? "" : machine.cuda_advice + "; ") +
                            "until then GPU pairs are skipped and host pairs run"});
    return;
  }
  std::set<std::string> keys;
  for (const Gpu& gpu : machine.gpus) keys.insert(hardware_key(machine, {gpu.ordinal}));
  findings.push_back({"GPUs", Level::ok,
                      base::plural(machine.gpus.size(), "GPU") + (keys.size() == 1 ? ", hardware key " : ", hardware keys ") +
                          base::join({keys.begin(), keys.end()}, ", "),
                      ""});
  if (!machine.nvml_error.empty())
    findings.push_back(
        {"NVML", Level::warning, machine.nvml_error,
         "clocks, power, temperature and throttling stay unknown; in a container, add the driver capability 'utility'"});
  for (const Gpu& gpu : machine.gpus) examine_gpu(gpu, surroundings, findings);
}

void examine_peers(const Machine& machine, Findings& findings) {
  if (machine.gpus.size() < 2) return;
  std::size_t linked = 0, all = machine.gpus.size() * (machine.gpus.size() - 1);
  for (const Gpu& gpu : machine.gpus) linked += static_cast<std::size_t>(std::count(gpu.peers.begin(), gpu.peers.end(), true));
  if (linked == all) findings.push_back({"peer access", Level::ok, "between all GPUs", ""});
  else
    findings.push_back(
        {"peer access", Level::warning, std::to_string(linked) + " of " + std::to_string(all) + " directions",
         "pairs that need it are skipped; look at nvidia-smi topo -m, ACS settings and the container's isolation"});
}

// Opens CUTLASS's library to see whether its interface is this executable's.
std::string cutlass_refusal(const Surroundings& surroundings) try {
  if (surroundings.find_library) return surroundings.cutlass_refusal;
  cutlass_version();
  return {};
} catch (const Unsupported& reason) {
  const std::string text = reason.what();
  return text.substr(0, text.find("; "));
}

void examine_library(Library library, const Surroundings& surroundings, Findings& findings) {
  const std::string path = surroundings.find_library ? surroundings.find_library(library) : machine::locate(library);
  const std::string name = "library " + std::string{name_of(library)};
  if (path.empty())
    findings.push_back({name, Level::info,
                        file_names(library).front() + " not found; pairs and variants that call it are skipped",
                        library == Library::cutlass ? std::string{get_cutlass}
                                                    : "install it (./setup.sh) or set AISP_LIBRARY_PATH to its folder"});
  else if (const std::string refusal = library == Library::cutlass ? cutlass_refusal(surroundings) : ""; !refusal.empty())
    findings.push_back({name, Level::warning, refusal, std::string{get_cutlass}});
  else if (!path.ends_with(file_names(library).front()))
    findings.push_back({name, Level::info, path + ", of an older major version",
                        "install " + file_names(library).front() + " for comparable numbers"});
  else findings.push_back({name, Level::ok, path, ""});
}

class GpuReport {
 public:
  GpuReport(const Gpu& gpu, Findings& findings) : prefix_{"GPU " + std::to_string(gpu.ordinal)}, findings_{findings} {}

  void add(std::string_view topic, Level level, std::string what, std::string advice = {}) {
    findings_.push_back({prefix_ + (topic.empty() ? "" : " ") + std::string{topic}, level, std::move(what), std::move(advice)});
  }

 private:
  std::string prefix_;
  Findings& findings_;
};

std::string watts(double value) { return base::significant(value) + " W"; }

void identity(const Gpu& gpu, GpuReport& report) {
  const std::string what = gpu.name + ", sm_" + std::to_string(gpu.sm) + ", " + std::to_string(gpu.sm_count) + " SMs, " +
                           base::human_bytes(static_cast<double>(gpu.memory_bytes)) + ", " + gpu.uuid;
  if (gpu.sm < 80) report.add("", Level::problem, what, "aisp needs sm_80 (A100) or newer; its pairs are skipped on this GPU");
  else report.add("", Level::ok, what);
  if (const double scale = memory_scale(gpu.memory_bytes); scale < 1)
    report.add("memory", Level::info, "workloads run at " + std::to_string(std::lround(scale * 100)) + " % of their full size",
               "full size needs a GPU of 16 GB");
}

void code(const Gpu& gpu, const Surroundings& surroundings, GpuReport& report) {
  if (has_code(surroundings.built, gpu.sm)) return;
  const Obstacle lacking = lacking_code(surroundings.built, gpu.sm);
  report.add("code", Level::problem, lacking.reason, lacking.advice + "; until then its pairs are skipped");
}

void tcgen05(const Gpu& gpu, const Surroundings& surroundings, GpuReport& report) {
  const std::optional<std::string> product =
      surroundings.tcgen05_product ? surroundings.tcgen05_product(gpu.ordinal) : std::nullopt;
  const Answer answer = tcgen05_answer(gpu, surroundings.built, product);
  if (product && !product->empty())
    report.add("tcgen05", Level::problem, answer.why, "look at nvidia-smi and dmesg; build aisp anew with this toolkit");
  else report.add("tcgen05", Level::info, (answer.yes ? "" : "no: ") + answer.why, answer.advice);
}

void features(const Gpu& gpu, const Surroundings& surroundings, GpuReport& report) {
  report.add("clusters", Level::info,
             has_dsmem(gpu) ? "distributed shared memory" : "no distributed shared memory; pairs that need it are skipped");
  tcgen05(gpu, surroundings, report);
  if (gpu.mig) report.add("MIG", Level::info, "a slice of a GPU; its results have a hardware key of their own");
  if (gpu.numa_node >= 0) report.add("NUMA", Level::info, "on node " + std::to_string(gpu.numa_node) + " (" + gpu.pci + ")");
}

void ecc(const GpuCondition& c, GpuReport& report) {
  if (!c.ecc) return;
  if (c.ecc_uncorrected.value_or(0) > 0)
    report.add("ECC", Level::problem, base::plural(*c.ecc_uncorrected, "uncorrected error") + " since the driver was loaded",
               "drain this GPU, reset it (nvidia-smi --gpu-reset) and have it checked; results cannot be trusted");
  else if (c.ecc_pending && *c.ecc_pending != *c.ecc)
    report.add("ECC", Level::warning, std::string{*c.ecc ? "on" : "off"} + ", changes at the next reset",
               "reset the GPU, or undo it with nvidia-smi -e");
  else if (!*c.ecc)
    report.add("ECC", Level::info, "off; errors in memory go unnoticed", "sudo nvidia-smi -e 1 and a reset turn it on");
  else report.add("ECC", Level::ok, "on, " + std::to_string(c.ecc_corrected.value_or(0)) + " corrected");
}

void clocks(const GpuCondition& c, GpuReport& report) {
  if (!c.sm_clock_mhz || !c.sm_clock_max_mhz) return;
  const std::string what = "SM " + std::to_string(*c.sm_clock_mhz) + " of " + std::to_string(*c.sm_clock_max_mhz) + " MHz";
  const std::uint64_t reasons = c.throttle_reasons.value_or(0);
  if (!slows_down(reasons)) report.add("clocks", Level::ok, what + (reasons != 0 ? " (" + throttle_text(reasons) + ")" : ""));
  else
    report.add(
        "clocks", Level::warning, what + ", held back: " + throttle_text(reasons),
        "check cooling and power; application clocks are reset by sudo nvidia-smi -rac. Alternating samples keep speedups valid");
}

void power(const GpuCondition& c, GpuReport& report) {
  if (!c.power_limit_w) return;
  const std::string limit = "limit " + watts(*c.power_limit_w);
  const std::string now = c.power_w ? ", drawing " + watts(*c.power_w) : "";
  if (c.power_limit_default_w && *c.power_limit_w < *c.power_limit_default_w - 0.5)
    report.add("power", Level::warning, limit + " below the default of " + watts(*c.power_limit_default_w) + now,
               "sudo nvidia-smi -pl " + base::significant(*c.power_limit_default_w) +
                   " restores it; compute-bound pairs are slower until then");
  else report.add("power", Level::ok, limit + now);
  if (c.energy_counter && !*c.energy_counter)
    report.add("energy", Level::info, "no energy counter; joules per run are not reported");
}

void temperature(const GpuCondition& c, GpuReport& report) {
  if (!c.temperature_c) return;
  const std::string what = std::to_string(*c.temperature_c) + " C";
  if (*c.temperature_c >= 85)
    report.add("temperature", Level::warning, what, "let it cool down or improve its cooling; hot GPUs lower their clocks");
  else report.add("temperature", Level::ok, what);
}

void modes(const GpuCondition& c, GpuReport& report) {
  if (c.persistence && !*c.persistence)
    report.add("persistence", Level::warning, "off; every first use of the GPU costs seconds",
               "sudo nvidia-smi -pm 1, or run nvidia-persistenced");
  else if (c.persistence) report.add("persistence", Level::ok, "on");
  if (c.mig_mode && *c.mig_mode)
    report.add("MIG mode", Level::info, "on; each slice is a GPU of its own here",
               "sudo nvidia-smi -mig 0 gives the whole GPU back");
  constexpr int prohibited = 2, exclusive = 3;
  const int mode = c.compute_mode.value_or(0);
  if (mode == prohibited)
    report.add("compute mode", Level::problem, "prohibited; no CUDA program can use it", "sudo nvidia-smi -c 0");
  else if (mode == exclusive)
    report.add("compute mode", Level::info, "exclusive process; profilers beside a run may be refused", "sudo nvidia-smi -c 0");
}

void processes(const GpuCondition& c, GpuReport& report) {
  if (c.processes.empty()) {
    if (c.utilization_percent.value_or(0) > 5)
      report.add("processes", Level::warning,
                 std::to_string(*c.utilization_percent) + " % busy, by processes that this container does not see",
                 "measure when the GPU is idle; numbers taken beside other work are worthless");
    else report.add("processes", Level::ok, "none");
    return;
  }
  std::vector<std::string> names;
  for (const GpuProcess& process : c.processes)
    names.push_back((process.name.empty() ? "process" : process.name) + " " + std::to_string(process.pid) +
                    (process.memory_bytes > 0 ? " (" + base::human_bytes(static_cast<double>(process.memory_bytes)) + ")" : ""));
  report.add("processes", Level::warning, base::join(names, ", "),
             "end them before measuring; numbers taken beside other work are worthless");
}

void link(const Gpu& gpu, const GpuCondition& c, GpuReport& report) {
  if (gpu.integrated || !c.pcie_width || !c.pcie_width_max || *c.pcie_width == 0) return;
  const std::string what = "x" + std::to_string(*c.pcie_width) +
                           (c.pcie_generation_max ? ", generation " + std::to_string(*c.pcie_generation_max) : "");
  // The generation falls when the link idles; lanes do not.
  if (*c.pcie_width < *c.pcie_width_max)
    report.add("PCIe", Level::warning, what + " of x" + std::to_string(*c.pcie_width_max),
               "reseat the card or use another slot; transfers are slower by that factor");
  else report.add("PCIe", Level::ok, what);
}

}  // namespace

Level worst(const std::vector<Diagnosis>& findings) {
  Level level = Level::ok;
  for (const Diagnosis& finding : findings) level = std::max(level, finding.level);
  return level;
}

std::vector<fs::path> toolkit_homes(const fs::path& root) {
  std::vector<fs::path> homes;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
    if (const char* home = std::getenv(variable); home != nullptr && *home != '\0')
      homes.emplace_back(root / fs::path{home}.relative_path());
  homes.push_back(root / "usr/local/cuda");
  return homes;
}

std::vector<Diagnosis> examine(const Machine& machine, const Surroundings& surroundings) {
  Findings findings;
  std::error_code unreadable;
  // Without it most of the rest would be wrong: no driver, no memory, no CUDA device.
  if (!fs::exists(surroundings.root / "proc/self", unreadable) && !unreadable)
    return {{"/proc", Level::problem, "not mounted; aisp needs it to start its workers, and to examine this machine",
             "mount -t proc proc /proc"}};
  examine_driver(machine, findings);
  examine_runtime(machine, findings);
  examine_toolkit(surroundings, findings);
  examine_assembler(surroundings, findings);
  examine_gpu_list(machine, surroundings, findings);
  examine_peers(machine, findings);
  examine_host(machine, surroundings, findings);
  for (auto i = static_cast<int>(Library::none) + 1; i <= static_cast<int>(last_library); ++i) {
    const auto library = static_cast<Library>(i);
    // Without a GPU the driver's own library is not missed.
    if (library != Library::nvml || !machine.gpus.empty()) examine_library(library, surroundings, findings);
  }
  return findings;
}

void examine_gpu(const Gpu& gpu, const Surroundings& surroundings, Findings& findings) {
  GpuReport report{gpu, findings};
  identity(gpu, report);
  code(gpu, surroundings, report);
  features(gpu, surroundings, report);
  if (!gpu.condition) return;
  const GpuCondition& condition = *gpu.condition;
  ecc(condition, report);
  clocks(condition, report);
  power(condition, report);
  temperature(condition, report);
  modes(condition, report);
  processes(condition, report);
  link(gpu, condition, report);
}

}  // namespace aisp::machine
