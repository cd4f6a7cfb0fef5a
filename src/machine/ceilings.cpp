// SPDX-License-Identifier: Apache-2.0
#include "machine/ceilings.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/text.hpp"
#include "machine/chips.hpp"
#include "machine/gpu_specs.hpp"

namespace aisp::machine {
namespace {

using base::CeilingFrom;

constexpr std::size_t index(Math math) { return static_cast<std::size_t>(math); }

// Fractions of theoretical peaks that were recorded on the H200: 65.8 of 66.9 TFLOP/s, 1480 of 2141 TFLOP/s in FP8, 55 of 63
// GB/s, 396 of 450 GB/s; for memory, fractions of the datasheet's figure: 4.25 of 4.8 TB/s, 4.57 of 4.8 TB/s read. Other chips
// are given the same fractions, and the H200's time of a launch, until they are measured. L2 gave 9.1 of 16.7 TB/s to reads.
constexpr double l2_part = 0.54;
constexpr double copy_part = 0.885, read_part = 0.95, plain_part = 0.98, tensor_part = 0.69, link_part = 0.87;

Ceilings parts_of(const Peaks& peaks) {
  Ceilings c;
  const double memory_bytes_s = peaks.datasheet_bytes_s > 0 ? peaks.datasheet_bytes_s : peaks.memory_bytes_s;
  c.copy_bytes_s = memory_bytes_s * copy_part;
  c.read_bytes_s = memory_bytes_s * read_part;
  for (std::size_t i = 0; i < math_kinds; ++i)
    c.flops_s[i] = peaks.flops_s[i] * (number_traits[i].on_tensor_cores ? tensor_part : plain_part);
  c.host_to_device_bytes_s = c.device_to_host_bytes_s = peaks.pcie_bytes_s * link_part;
  c.peer_bytes_s = peaks.peer_bytes_s * link_part;
  c.l2_bytes_s = peaks.l2_bytes_s * l2_part;
  c.wavefronts_s = peaks.wavefronts_s;
  c.issue_slots_s = peaks.issue_slots_s;
  c.special_functions_s = peaks.special_functions_s;
  c.launch_s = recorded_of_reported("NVIDIA H200")->launch_s;
  c.from.wavefronts = CeilingFrom::computed;
  c.source = "provisional: parts of the chip's theoretical peaks";
  return c;
}

// Returns the ceilings recorded on the same chip; nothing if there are none.
std::optional<Ceilings> recorded_ceilings(const Gpu& gpu) {
  const RecordedCeilings* const recorded = gpu.mig ? nullptr : recorded_of_reported(gpu.name);
  if (recorded == nullptr) return std::nullopt;
  Ceilings c;
  c.copy_bytes_s = recorded->copy_bytes_s;
  c.read_bytes_s = recorded->read_bytes_s;
  c.flops_s = recorded->flops_s;
  c.host_to_device_bytes_s = recorded->host_to_device_bytes_s;
  c.device_to_host_bytes_s = recorded->device_to_host_bytes_s;
  c.peer_bytes_s = recorded->peer_bytes_s;
  c.launch_s = recorded->launch_s;
  c.l2_bytes_s = recorded->l2_bytes_s;
  const auto note = [](CeilingFrom& from, double rate) {
    if (rate > 0) from = CeilingFrom::recorded;
  };
  note(c.from.memory, std::min(c.copy_bytes_s, c.read_bytes_s));
  for (std::size_t i = 0; i < math_kinds; ++i) note(c.from.flops[i], c.flops_s[i]);
  note(c.from.host_to_device, c.host_to_device_bytes_s);
  note(c.from.device_to_host, c.device_to_host_bytes_s);
  note(c.from.peer, c.peer_bytes_s);
  note(c.from.launch, c.launch_s);
  note(c.from.l2, c.l2_bytes_s);
  c.source = "provisional: recorded on " + std::string{recorded->on};
  return c;
}

class Longest {
 public:
  void consider(double amount, double per_second, std::string_view unit, const std::string& limiter, CeilingFrom from) {
    if (amount <= 0 || per_second <= 0 || amount / per_second <= floor_.seconds) return;
    floor_ = {amount / per_second, limiter, base::human_rate(per_second, unit), from};
  }
  void consider_time(double seconds, const std::string& limiter, const std::string& ceiling, CeilingFrom from) {
    if (seconds > floor_.seconds) floor_ = {seconds, limiter, ceiling, from};
  }
  // One type after the other runs on the tensor cores; scalar types have units of their own.
  void consider_math(const Cost& cost, const Ceilings& ceilings) {
    double seconds = 0, flops = 0;
    CeilingFrom worst = CeilingFrom::measured;
    std::vector<std::string> types;
    for (const MoreMath& each : math_of(cost)) {
      const double per_second = ceilings.flops_s[index(each.math)];
      if (per_second <= 0) continue;
      const std::string type{name_of(each.math)};
      const CeilingFrom from = ceilings.from.flops[index(each.math)];
      if (!traits_of(each.math).on_tensor_cores) {
        consider(each.flops, per_second, "FLOP", "compute (" + type + ")", from);
        continue;
      }
      seconds += each.flops / per_second;
      flops += each.flops;
      worst = std::max(worst, from);
      types.push_back(type);
    }
    if (seconds > 0) consider(flops, flops / seconds, "FLOP", "compute (" + base::join(types, " + ") + ")", worst);
  }
  const FloorTime& result() const { return floor_; }

 private:
  FloorTime floor_;
};

constexpr std::array amounts{
    CostAmount{"bytes", &Cost::bytes, true},
    CostAmount{"l2_bytes", &Cost::l2_bytes, true, &Ceilings::l2_bytes_s, nullptr, "B", "L2", "", &CeilingSources::l2},
    CostAmount{"shared_wavefronts", &Cost::shared_wavefronts, true, &Ceilings::wavefronts_s, &Peaks::wavefronts_s, " wavefronts",
               "shared memory", "", &CeilingSources::wavefronts},
    CostAmount{"issue_slots", &Cost::issue_slots, true, &Ceilings::issue_slots_s, &Peaks::issue_slots_s, " instructions",
               "issue slots"},
    CostAmount{"special_functions", &Cost::special_functions, true, &Ceilings::special_functions_s, &Peaks::special_functions_s,
               " results", "special functions"},
    CostAmount{"host_to_device", &Cost::host_to_device, true, &Ceilings::host_to_device_bytes_s, &Peaks::pcie_bytes_s, "B",
               "host to device", "to the device", &CeilingSources::host_to_device},
    CostAmount{"device_to_host", &Cost::device_to_host, true, &Ceilings::device_to_host_bytes_s, &Peaks::pcie_bytes_s, "B",
               "device to host", "to the host", &CeilingSources::device_to_host},
    CostAmount{"peer_bytes", &Cost::peer_bytes, true, &Ceilings::peer_bytes_s, &Peaks::peer_bytes_s, "B", "peer", "between GPUs",
               &CeilingSources::peer},
    CostAmount{"host_bytes", &Cost::host_bytes, false},
    CostAmount{"dependent_kernels", &Cost::dependent_kernels, true},
    CostAmount{"seconds", &Cost::seconds, false}};

FloorTime floor_of_phase(const Cost& cost, const Ceilings& ceilings, double bytes_written) {
  Longest longest;
  const CeilingSources& from = ceilings.from;
  longest.consider(cost.bytes, memory_bytes_s(cost.bytes, bytes_written, ceilings), "B", "memory", from.memory);
  longest.consider_math(cost, ceilings);
  for (const CostAmount& each : amounts)
    if (each.ceiling != nullptr)
      longest.consider(cost.*each.amount, ceilings.*each.ceiling, each.unit, std::string{each.limiter},
                       each.source == nullptr ? CeilingFrom::computed : from.*each.source);
  if (beyond_host_caches(cost.host_bytes, ceilings))
    longest.consider(cost.host_bytes, ceilings.host_copy_bytes_s, "B", "host memory", from.host_copy);
  longest.consider_time(cost.dependent_kernels * ceilings.launch_s, "launch",
                        base::display_ms(ceilings.launch_s * 1e3) + " per dependent kernel", from.launch);
  longest.consider_time(cost.seconds, "declared", "the pair's own arithmetic", CeilingFrom::computed);
  return longest.result();
}

void add_math(std::vector<MoreMath>& all, const MoreMath& more) {
  if (more.flops == 0) return;
  const auto found = std::ranges::find(all, more.math, &MoreMath::math);
  if (found == all.end()) all.push_back(more);
  else found->flops += more.flops;
}

std::string decimal_bytes(double bytes) {
  std::string rate = base::human_rate(bytes, "B");
  return rate.substr(0, rate.size() - 2);  // without "/s"
}

// NVLink to all peers together, one direction: the product's, else that of the chip's generation; 0 where there is none.
double nvlink_bytes_s(const GpuSpec* spec, const Chip& chip) {
  return spec != nullptr && spec->link_bytes_s.known() ? spec->link_bytes_s.value / 2 : chip.nvlink_bytes_s;
}

// The CPU of a superchip reads the GPU's memory over NVLink-C2C; an integrated GPU shares the CPU's memory.
double host_link_bytes_s(const Gpu& gpu, const GpuSpec* spec, double memory_bytes_s) {
  if (gpu.integrated) return memory_bytes_s;
  if (spec != nullptr && spec->cpu_link_bytes_s > 0) return spec->cpu_link_bytes_s;
  const bool told = gpu.condition && gpu.condition->pcie_generation_max && gpu.condition->pcie_width_max;
  if (told) return pcie_bytes_s(*gpu.condition->pcie_generation_max, *gpu.condition->pcie_width_max);
  return pcie_bytes_s(chip_of(gpu.sm).pcie_generation, 16);
}

}  // namespace

// PCI Express: transfers per second and lane times the line code's efficiency, in bytes and one direction.
double pcie_bytes_s(int generation, int width) {
  constexpr std::array per_lane = {0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9};
  const int known = std::clamp(generation, 1, static_cast<int>(per_lane.size()));
  return per_lane[static_cast<std::size_t>(known - 1)] * width;
}

double memory_clock_bytes_s(const Gpu& gpu) {
  return static_cast<double>(gpu.memory_clock_khz) * 1e3 * 2 * gpu.memory_bus_bits / 8;
}

Peaks theoretical_peaks(const Gpu& gpu) {
  Peaks peaks;
  const GpuSpec* const spec = spec_of_reported(gpu.name);
  // Sheets round down at times: an H200's clock and bus give 4.92 TB/s, its sheet says 4.8.
  const double clocked_bytes_s = memory_clock_bytes_s(gpu);
  peaks.datasheet_bytes_s = spec != nullptr ? spec->memory_limit_bytes_s : 0;
  peaks.memory_bytes_s = std::max(peaks.datasheet_bytes_s, clocked_bytes_s);
  peaks.memory_source = spec != nullptr && peaks.datasheet_bytes_s >= clocked_bytes_s ? "datasheet" : "memory clock x bus width";
  const double sm_clocks_s = static_cast<double>(gpu.sm_count) * gpu.clock_khz * 1e3;
  const Chip chip = chip_of(gpu.sm);
  for (std::size_t i = 0; i < math_kinds; ++i) peaks.flops_s[i] = chip.per_clock[i] * sm_clocks_s;
  peaks.l2_bytes_s = l2_bytes_per_clock * sm_clocks_s;
  peaks.wavefronts_s = sm_clocks_s;
  peaks.issue_slots_s = issue_slots_per_clock * sm_clocks_s;
  peaks.special_functions_s = chip.special_functions_per_clock * sm_clocks_s;
  peaks.pcie_bytes_s = host_link_bytes_s(gpu, spec, peaks.memory_bytes_s);
  peaks.peer_bytes_s = std::max(nvlink_bytes_s(spec, chip), peaks.pcie_bytes_s);
  return peaks;
}

Ceilings provisional_ceilings(const Gpu& gpu) {
  const Ceilings estimate = parts_of(theoretical_peaks(gpu));
  std::optional<Ceilings> recorded = recorded_ceilings(gpu);
  if (!recorded) return estimate;
  for (std::size_t i = 0; i < math_kinds; ++i)
    if (recorded->flops_s[i] == 0) recorded->flops_s[i] = estimate.flops_s[i];
  recorded->wavefronts_s = estimate.wavefronts_s;
  recorded->from.wavefronts = estimate.from.wavefronts;
  recorded->issue_slots_s = estimate.issue_slots_s;
  recorded->special_functions_s = estimate.special_functions_s;
  return *recorded;
}

Ceilings host_ceilings() {
  Ceilings c;
  c.source = "none: run aisp peak";
  return c;
}

bool beyond_host_caches(double bytes, const Ceilings& ceilings) {
  constexpr double times = 4;
  return ceilings.host_cache_bytes > 0 && bytes >= times * static_cast<double>(ceilings.host_cache_bytes);
}

double memory_bytes_s(double bytes, double bytes_written, const Ceilings& ceilings) {
  const double read = ceilings.read_bytes_s, copy = ceilings.copy_bytes_s;
  if (copy <= 0 || read <= copy || bytes <= 0) return std::max(read, copy);
  const double mixed = 2 * std::max(0.0, std::min(bytes_written, bytes - bytes_written)) / bytes;
  return 1 / (1 / read + (1 / copy - 1 / read) * mixed);
}

FloorTime floor_seconds(const Cost& cost, const Ceilings& ceilings, double bytes_written) {
  if (cost.phases.empty()) return floor_of_phase(cost, ceilings, bytes_written);
  const double bytes = whole(cost).bytes, written_share = bytes > 0 ? bytes_written / bytes : 0;
  FloorTime sum, longest;
  for (const Cost& phase : cost.phases) {
    const FloorTime time = floor_seconds(phase, ceilings, whole(phase).bytes * written_share);
    sum.seconds += time.seconds;
    if (time.seconds > 0) sum.from = std::max(sum.from, time.from);
    if (time.seconds > longest.seconds) longest = time;
  }
  sum.limiter = longest.limiter;
  sum.ceiling = longest.ceiling;
  if (longest.seconds > 0 && longest.seconds < sum.seconds)
    sum.ceiling += " in the longest of " + std::to_string(cost.phases.size()) + " phases";
  return sum;
}

ImpossibleTime impossible_seconds(const Cost& cost, const Peaks& peaks, std::uint64_t l2_bytes) {
  ImpossibleTime result;
  if (!cost.phases.empty()) {
    double longest = 0;
    for (const Cost& phase : cost.phases) {
      const ImpossibleTime time = impossible_seconds(phase, peaks, l2_bytes);
      result.seconds += time.seconds;
      if (time.seconds > longest) result.arithmetic = time.arithmetic;
      longest = std::max(longest, time.seconds);
    }
    if (longest < result.seconds)
      result.arithmetic +=
          ", and all " + std::to_string(cost.phases.size()) + " phases " + base::display_ms(result.seconds * 1e3);
    return result;
  }
  const auto consider = [&](double amount, double per_second, const std::string& words) {
    if (amount <= 0 || per_second <= 0 || amount / per_second <= result.seconds) return;
    result.seconds = amount / per_second;
    result.arithmetic = words + " take " + base::display_ms(result.seconds * 1e3);
  };
  const auto cache_bytes = static_cast<double>(l2_bytes);
  consider(cost.bytes - cache_bytes, peaks.memory_bytes_s,
           decimal_bytes(cost.bytes - cache_bytes) + " beyond the " + decimal_bytes(cache_bytes) + " of L2 at " +
               base::human_rate(peaks.memory_bytes_s, "B") + " (" + peaks.memory_source + ")");
  for (const MoreMath& each : math_of(cost)) {
    const double flops_s = peaks.flops_s[index(each.math)];
    consider(each.flops, flops_s,
             base::significant(each.flops / 1e9) + " GFLOP at " + base::human_rate(flops_s, "FLOP") + " (" +
                 std::string{name_of(each.math)} + " units x maximum clock)");
  }
  for (const CostAmount& each : amounts) {
    if (each.peak == nullptr) continue;
    const double amount = cost.*each.amount, per_second = peaks.*each.peak;
    const std::string rate = base::human_rate(per_second, each.unit);
    if (each.path.empty())
      consider(amount, per_second,
               base::significant(amount / 1e9) + " G" + std::string{each.unit} + " at " + rate + " (SMs x maximum clock)");
    else consider(amount, per_second, decimal_bytes(amount) + " " + std::string{each.path} + " at " + rate + " (link rate)");
  }
  return result;
}

std::span<const CostAmount> cost_amounts() { return amounts; }

std::vector<MoreMath> math_of(const Cost& cost) {
  std::vector<MoreMath> all;
  add_math(all, {cost.flops, cost.math});
  for (const MoreMath& more : cost.more_math) add_math(all, more);
  return all;
}

Cost whole(const Cost& cost) {
  if (cost.phases.empty()) return cost;
  Cost sum;
  std::vector<MoreMath> math;
  for (const Cost& each : cost.phases) {
    const Cost phase = whole(each);
    for (const CostAmount& amount : amounts) sum.*amount.amount += phase.*amount.amount;
    for (const MoreMath& more : math_of(phase)) add_math(math, more);
  }
  if (math.empty()) return sum;
  sum.flops = math.front().flops;
  sum.math = math.front().math;
  sum.more_math = std::span{math}.subspan(1);
  return sum;
}

}  // namespace aisp::machine
