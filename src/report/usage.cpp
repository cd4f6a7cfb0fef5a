// SPDX-License-Identifier: Apache-2.0
#include "report/usage.hpp"

#include <fmt/format.h>

#include "base/text.hpp"

namespace aisp::report {
namespace {

using base::display_ms;
using evidence::VariantResult;

std::string bytes_text(std::uint64_t bytes) { return bytes == 0 ? "-" : base::human_bytes(static_cast<double>(bytes)); }

std::string per_joule(double value, const char* unit) {
  return value > 0 ? fmt::format("{} {}", base::significant(value), unit) : std::string{"-"};
}

std::string rate(double amount, double run_ms, const char* unit) {
  return amount > 0 && run_ms > 0 ? base::human_rate(amount * 1e3 / run_ms, unit) : std::string{"-"};
}

}  // namespace

std::string joules_text(double joules) {
  if (joules >= 0.1) return base::significant(joules) + " J";
  if (joules >= 1e-4) return base::significant(joules * 1e3) + " mJ";
  return base::significant(joules * 1e6) + " uJ";
}

std::string energy_ratio_text(const evidence::Energy& energy) {
  if (!energy.ratio) return "-";
  return fmt::format("{}x [{}, {}]", base::significant(energy.ratio->value), base::significant(energy.ratio->low),
                     base::significant(energy.ratio->high));
}

std::string goodput_text(const evidence::LatencyGoodput& goodput) {
  std::vector<std::string> targets;
  if (goodput.ttft_target_ms > 0) targets.push_back("TTFT " + display_ms(goodput.ttft_target_ms));
  if (goodput.tpot_target_ms > 0) targets.push_back("TPOT " + display_ms(goodput.tpot_target_ms));
  return fmt::format("{:.0f} %, {} requests/s ({})", goodput.percent, base::significant(goodput.requests_per_second),
                     base::join(targets, ", "));
}

Rows energy_rows(const evidence::PairResult& pair) {
  Rows rows{{"variant", "energy a run", "95 % interval", "less than the baseline", "power", "a run, back to back", "arithmetic",
             "bytes", "GFLOP/J", "GB/J"}};
  for (const VariantResult& variant : pair.variants) {
    if (!variant.energy) continue;
    const evidence::Energy& e = *variant.energy;
    rows.push_back({variant.name, joules_text(e.median_j), fmt::format("{} to {}", joules_text(e.low_j), joules_text(e.high_j)),
                    energy_ratio_text(e), fmt::format("{:.0f} W", e.average_w), display_ms(e.run_ms),
                    rate(variant.cost.flops, e.run_ms, "FLOP"), rate(variant.cost.bytes, e.run_ms, "B"),
                    per_joule(e.gflop_per_j, "GFLOP/J"), per_joule(e.gb_per_j, "GB/J")});
  }
  return rows;
}

Rows memory_rows(const evidence::PairResult& pair) {
  Rows rows{{"variant", "buffers", "peak", "reserved", "by the driver's account", "host peak"}};
  for (const VariantResult& variant : pair.variants) {
    const evidence::MemoryUse& m = variant.memory;
    if (m.device_driver_bytes == 0 && m.host_peak_rss_bytes == 0) continue;
    rows.push_back({variant.name, bytes_text(m.device_allocated_bytes), bytes_text(m.device_peak_bytes),
                    bytes_text(m.device_reserved_bytes), bytes_text(m.device_driver_bytes), bytes_text(m.host_peak_rss_bytes)});
  }
  return rows;
}

Rows kernel_rows(const evidence::PairResult& pair) {
  Rows rows{{"variant", "kernel", "registers a thread", "local memory a thread"}};
  for (const VariantResult& variant : pair.variants)
    for (const evidence::CompiledKernel& kernel : variant.kernels)
      rows.push_back({variant.name, kernel.name, std::to_string(kernel.registers), bytes_text(kernel.local_bytes)});
  return rows;
}

Rows inference_rows(const evidence::PairResult& pair) {
  Rows rows{{"variant", "requests", "tokens", "TTFT mean", "TTFT p50", "TTFT p99", "TPOT mean", "TPOT p50", "TPOT p99",
             "TPOT of requests p50", "TPOT of requests p99", "tokens/s", "goodput"}};
  for (const VariantResult& variant : pair.variants) {
    if (!variant.inference) continue;
    const evidence::InferenceTiming& i = *variant.inference;
    rows.push_back({variant.name, std::to_string(i.requests), std::to_string(i.tokens), display_ms(i.ttft_ms.mean),
                    display_ms(i.ttft_ms.p50), display_ms(i.ttft_ms.p99), display_ms(i.tpot_ms.mean), display_ms(i.tpot_ms.p50),
                    display_ms(i.tpot_ms.p99), display_ms(i.request_tpot_ms.p50), display_ms(i.request_tpot_ms.p99),
                    base::significant(i.tokens_per_second), i.goodput ? goodput_text(*i.goodput) : "-"});
  }
  return rows;
}

}  // namespace aisp::report
