// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "base/text.hpp"
#include "machine/architectures.hpp"
#include "machine/doctor/doctor.hpp"
#include "machine/doctor/tcgen05.hpp"
#include "machine/needs.hpp"
#include "machine/nvml.hpp"

namespace aisp::machine {
namespace {

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
