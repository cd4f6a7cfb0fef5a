// SPDX-License-Identifier: Apache-2.0
#include "evidence/quantities.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/text.hpp"

namespace aisp::evidence {

namespace {

using Reading = std::optional<Range>;
using P = PairResult;
using V = VariantResult;

// Below this a variant's preparation is noise of the clock.
constexpr double telling_prepare_ms = 0.01;

constexpr Range exactly(double value) { return {value, value, value}; }
Reading unless_zero(double value) { return value != 0 ? Reading{exactly(value)} : std::nullopt; }

Reading reading(const std::optional<double>& value) { return value ? Reading{exactly(*value)} : std::nullopt; }

// Getters of a member of a part that a variant may have.
template <auto Figure>
Reading timing(const P&, const V& v) {
  return v.timing ? Reading{exactly(static_cast<double>(v.timing->summary.*Figure))} : std::nullopt;
}
template <auto Figure>
Reading accuracy(const P&, const V& v) {
  return v.accuracy ? Reading{exactly(static_cast<double>((*v.accuracy).*Figure))} : std::nullopt;
}
template <auto Figure>
Reading inference(const P&, const V& v) {
  return v.inference ? Reading{exactly(static_cast<double>((*v.inference).*Figure))} : std::nullopt;
}
template <Summary InferenceTiming::*Part, double Summary::*Figure>
Reading latency(const P&, const V& v) {
  return v.inference ? Reading{exactly((*v.inference).*Part.*Figure)} : std::nullopt;
}
template <double Energy::*Figure>
Reading energy(const P&, const V& v) {
  return v.energy ? unless_zero((*v.energy).*Figure) : std::nullopt;
}
template <std::uint64_t MemoryUse::*Figure>
Reading memory(const P&, const V& v) {
  return unless_zero(static_cast<double>(v.memory.*Figure));
}

Range range_of(const Speedup& ratio) { return {ratio.value, ratio.low, ratio.high}; }

Reading speedup(const P& pair, const V& v) {
  const Speedup* const claimed = claimable(pair, v);
  return claimed != nullptr ? Reading{range_of(*claimed)} : std::nullopt;
}
const Gain* claimed_gain(const P& pair, const V& v) { return claimable(pair, v) != nullptr && v.gain ? &*v.gain : nullptr; }

// Returns the rate of declared work per second.
Reading rate(const V& v, double amount) {
  return v.energy && amount > 0 && v.energy->run_ms > 0 ? Reading{exactly(amount * 1e3 / v.energy->run_ms)} : std::nullopt;
}

// Likewise over its median time, in multiples of `unit`; nothing of a variant that may not have done its work.
Reading rate_at_median(const P& pair, const V& v, double amount, double unit) {
  const bool done = pair.status == Status::passed && v.status == Status::passed && v.timing && v.timing->summary.median > 0;
  return done && amount > 0 ? Reading{exactly(amount * 1e3 / v.timing->summary.median / unit)} : std::nullopt;
}
Reading tflops_of(const P& pair, const V& v) { return rate_at_median(pair, v, v.cost.flops, 1e12); }
Reading gb_per_s_of(const P& pair, const V& v) { return rate_at_median(pair, v, v.cost.bytes, 1e9); }

Reading baseline_median_ms_of(const P& pair, const V&) {
  const bool timed =
      !pair.variants.empty() && pair.variants.front().role == VariantRole::baseline && pair.variants.front().timing;
  return timed ? Reading{exactly(pair.variants.front().timing->summary.median)} : std::nullopt;
}

const std::vector<double>& raw_times_ms(const V& v) { return v.timing->raw_times_ms; }
bool median_ms_is_sampled(const V& v) { return v.timing->raw_times_ms.size() >= fewest_samples; }

Reading autocorrelation_of(const P&, const V& v) { return v.timing ? reading(v.timing->autocorrelation) : std::nullopt; }

bool speedup_is_sampled(const V& v) { return v.speedup->low < v.speedup->value || v.speedup->high > v.speedup->value; }

Reading speedup_of_any(const V& v) { return v.speedup ? Reading{range_of(*v.speedup)} : std::nullopt; }

std::string verdict_words(const P& pair, const V& v) {
  const Speedup* const claimed = claimable(pair, v);
  return claimed != nullptr ? std::string{to_string(claimed->verdict)} : std::string{};
}

std::string gain_over_words(const P& pair, const V& v) {
  const Gain* const gain = claimed_gain(pair, v);
  return gain != nullptr ? gain->over : std::string{};
}

Reading gain_of(const P& pair, const V& v) {
  const Gain* const gain = claimed_gain(pair, v);
  return gain != nullptr ? Reading{range_of(gain->ratio)} : std::nullopt;
}

std::string library_words(const P& pair, const V& v) {
  const LibraryShare* const share = claimable_share(pair, v);
  return share != nullptr ? share->library : std::string{};
}

Reading percent_of_library_of(const P& pair, const V& v) {
  const LibraryShare* const share = claimable_share(pair, v);
  return share != nullptr ? Reading{Range{share->percent, share->low, share->high}} : std::nullopt;
}

Reading percent_of_floor_of(const P&, const V& v) { return v.floor ? Reading{exactly(v.floor->percent)} : std::nullopt; }

std::string ceiling_from_words(const P&, const V& v) {
  return v.floor ? std::string{to_string(v.floor->ceiling_from)} : std::string{};
}

std::string limiter_words(const P&, const V& v) { return v.floor ? v.floor->limiter : std::string{}; }

Reading gpu_busy_percent_of(const P&, const V& v) { return reading(gpu_busy_percent(v)); }

Reading prepare_ms_of(const P&, const V& v) {
  return v.prepare_ms >= telling_prepare_ms ? unless_zero(v.prepare_ms) : std::nullopt;
}

Reading unquantized_l2_of(const P&, const V& v) {
  return v.accuracy && v.changes_precision ? Reading{exactly(v.accuracy->unquantized_l2)} : std::nullopt;
}

std::string bitwise_repeatable_words(const P&, const V& v) {
  return std::string{!v.accuracy ? "" : v.accuracy->bitwise_repeatable ? "yes" : "no"};
}

std::string checks_off_words(const P&, const V& v) { return v.checks ? base::join(v.checks->off, "; ") : std::string{}; }

Reading energy_j_of(const P&, const V& v) {
  return v.energy ? Reading{Range{v.energy->median_j, v.energy->low_j, v.energy->high_j}} : std::nullopt;
}

bool energy_j_is_sampled(const V&) { return true; }

Reading energy_ratio_of(const P&, const V& v) {
  return v.energy && v.energy->ratio ? Reading{Range{v.energy->ratio->value, v.energy->ratio->low, v.energy->ratio->high}}
                                     : std::nullopt;
}

Reading flop_s_of(const P&, const V& v) { return rate(v, v.cost.flops); }

Reading bytes_s_of(const P&, const V& v) { return rate(v, v.cost.bytes); }

std::string goodput_words(const P&, const V& v) {
  return v.inference && v.inference->goodput ? goodput_text(*v.inference->goodput) : std::string{};
}

Reading good_requests_per_second_of(const P&, const V& v) {
  return v.inference && v.inference->goodput ? Reading{exactly(v.inference->goodput->requests_per_second)} : std::nullopt;
}

using F = Format;
constexpr auto lower = Direction::lower, higher = Direction::higher;

constexpr Quantity row(std::string_view group, Format format, std::string_view id, std::string_view title,
                       std::optional<Range> (*get)(const P&, const V&), bool in_csv = false) {
  return {.id = id, .group = group, .title = title, .format = format, .in_csv = in_csv, .get = get};
}

// Columns of CSV in this order, and so those of each group's table.
constexpr Quantity table[] = {
    {.id = "median_ms",
     .group = "Timing",
     .title = "median",
     .format = F::milliseconds,
     .in_csv = true,
     .meaning = "median time of a sample, less the stopwatch's own time",
     .get = timing<&Summary::median>,
     .compared = {time_metric, milliseconds_unit, lower, median_ms_is_sampled, time_range, raw_times_ms}},
    row("Timing", F::milliseconds, "mean_ms", "mean", timing<&Summary::mean>, true),
    row("Timing", F::milliseconds, "std_ms", "std", timing<&Summary::std>, true),
    row("Timing", F::milliseconds, "min_ms", "min", timing<&Summary::min>, true),
    row("Timing", F::milliseconds, "max_ms", "max", timing<&Summary::max>, true),
    row("Timing", F::milliseconds, "p25_ms", "p25", timing<&Summary::p25>),
    row("Timing", F::milliseconds, "p75_ms", "p75", timing<&Summary::p75>),
    row("Timing", F::milliseconds, "p90_ms", "p90", timing<&Summary::p90>),
    row("Timing", F::milliseconds, "p95_ms", "p95", timing<&Summary::p95>, true),
    row("Timing", F::milliseconds, "p99_ms", "p99", timing<&Summary::p99>, true),
    row("Timing", F::count, "iterations", "samples", timing<&Summary::count>, true),
    {.id = "autocorrelation",
     .group = "Timing",
     .title = "autocorrelation",
     .format = F::coefficient,
     .meaning =
         "of a variant's consecutive samples, by ranks: about 0 when they are independent; above 0.2 something changed slowly "
         "meanwhile",
     .get = autocorrelation_of},
    {.id = "speedup",
     .format = F::ratio,
     .in_csv = true,
     .interval_in_csv = true,
     .meaning =
         "median time of the baseline over that of the variant, above 1 is better, with its 95 % interval; that of the best, "
         "where it is not the lesson, holds for all optimized variants at once",
     .get = speedup,
     .compared = {speedup_metric, times_unit, higher, speedup_is_sampled, speedup_of_any}},
    {.id = "verdict", .in_csv = true, .words = verdict_words},
    {.id = "gain_over", .in_csv = true, .words = gain_over_words},
    {.id = "gain",
     .format = F::ratio,
     .in_csv = true,
     .interval_in_csv = true,
     .meaning = "what a step brings: as the speedup, but over the step before it, or the one named",
     .get = gain_of},
    {.id = "library", .in_csv = true, .words = library_words},
    {.id = "percent_of_library", .format = F::percent, .in_csv = true, .interval_in_csv = true, .get = percent_of_library_of},
    {.id = "percent_of_floor",
     .format = F::percent,
     .in_csv = true,
     .meaning =
         "the floor over the median time: how near the variant comes to the least time its declared cost allows; none where "
         "a metric judges instead of the time",
     .get = percent_of_floor_of,
     .compared = {"percent_of_floor", "%", higher}},
    {.id = "gap_closed",
     .group = "Timing",
     .title = "gap closed",
     .format = F::percent,
     .meaning =
         "the part of the way from the baseline's median time to the variant's floor that the variant has gone: 0 is as slow as "
         "the baseline, 100 at the machine's limit; none where the baseline is within 5 % of it",
     .get = gap_closed},
    {.id = "limiter", .in_csv = true, .words = limiter_words},
    {.id = "gpu_busy_percent",
     .format = F::percent,
     .meaning = "part of the median time in which the GPU ran a kernel or a copy; from another execution, which CUPTI recorded",
     .get = gpu_busy_percent_of,
     .compared = {"gpu_busy", "%", higher}},
    {.id = "prepare_ms",
     .format = F::milliseconds,
     .meaning = "one-time work on constant data that the variant declares, the first time in the process; not part of its time",
     .get = prepare_ms_of,
     .compared = {prepare_metric, milliseconds_unit, lower}},
    row("Accuracy", F::error, "relative_l2", "relative L2", accuracy<&Accuracy::relative_l2>, true),
    row("Accuracy", F::error, "limit_relative_l2", "limit", accuracy<&Accuracy::limit_relative_l2>),
    row("Accuracy", F::error, "max_error", "largest element error", accuracy<&Accuracy::max_error>),
    row("Accuracy", F::error, "limit_max_error", "limit", accuracy<&Accuracy::limit_max_error>),
    row("Accuracy", F::error, "versus_baseline_l2", "against the baseline", accuracy<&Accuracy::versus_baseline_l2>),
    row("Accuracy", F::error, "unquantized_l2", "unquantized", unquantized_l2_of),
    row("Accuracy", F::count, "samples", "samples", accuracy<&Accuracy::samples>),
    {.id = "bitwise_repeatable", .group = "Accuracy", .title = "same bits twice", .words = bitwise_repeatable_words},
    {.id = "checks_off", .group = "Accuracy", .title = "not checked", .words = checks_off_words},
    {.id = "energy_j",
     .group = "Energy",
     .title = "energy a run",
     .format = F::joules,
     .in_csv = true,
     .interval_in_csv = true,
     .meaning =
         "joules a run, back to back, of the whole board with its idle power: median over six windows of NVML's energy counter",
     .get = energy_j_of,
     .compared = {energy_metric, "J", lower, energy_j_is_sampled}},
    {.id = "energy_ratio",
     .group = "Energy",
     .title = "less than the baseline",
     .format = F::ratio,
     .in_csv = true,
     .meaning = "joules of the baseline over those of the variant, above 1 is less; its interval holds all six rounds",
     .get = energy_ratio_of},
    row("Energy", F::watts, "average_w", "power", energy<&Energy::average_w>, true),
    row("Energy", F::milliseconds, "run_ms", "a run, back to back", energy<&Energy::run_ms>),
    row("Energy", F::flop_rate, "flop_s", "arithmetic", flop_s_of),
    row("Energy", F::byte_rate, "bytes_s", "bytes", bytes_s_of),
    row("Energy", F::number, "gflop_per_j", "GFLOP/J", energy<&Energy::gflop_per_j>),
    row("Energy", F::number, "gb_per_j", "GB/J", energy<&Energy::gb_per_j>),
    row("Memory", F::bytes, "device_allocated_bytes", "buffers", memory<&MemoryUse::device_allocated_bytes>),
    {.id = "device_peak_bytes",
     .group = "Memory",
     .title = "peak",
     .format = F::bytes,
     .in_csv = true,
     .meaning = "device memory: the workload's buffers, and what cudaMallocAsync's pools handed out at most",
     .get = memory<&MemoryUse::device_peak_bytes>,
     .compared = {"device_peak", bytes_unit, lower}},
    {.id = "device_reserved_bytes",
     .group = "Memory",
     .title = "reserved",
     .format = F::bytes,
     .in_csv = true,
     .meaning = "device memory: the workload's buffers, and what the pools held from the driver at most",
     .get = memory<&MemoryUse::device_reserved_bytes>},
    row("Memory", F::bytes, "device_driver_bytes", "by the driver's account", memory<&MemoryUse::device_driver_bytes>),
    {.id = "host_peak_rss_bytes",
     .group = "Memory",
     .title = "host peak",
     .format = F::bytes,
     .in_csv = true,
     .get = memory<&MemoryUse::host_peak_rss_bytes>,
     .compared = {"host_peak_rss", bytes_unit, lower}},
    row("Inference", F::count, "requests", "requests", inference<&InferenceTiming::requests>),
    row("Inference", F::count, "tokens", "tokens", inference<&InferenceTiming::tokens>),
    row("Inference", F::milliseconds, "ttft_mean_ms", "TTFT mean", latency<&InferenceTiming::ttft_ms, &Summary::mean>),
    {.id = "ttft_p50_ms",
     .group = "Inference",
     .title = "TTFT p50",
     .format = F::milliseconds,
     .in_csv = true,
     .meaning = "time from the start of the sample to a request's first token, by marks on the device",
     .get = latency<&InferenceTiming::ttft_ms, &Summary::p50>,
     .compared = {"ttft", milliseconds_unit, lower}},
    row("Inference", F::milliseconds, "ttft_p99_ms", "TTFT p99", latency<&InferenceTiming::ttft_ms, &Summary::p99>, true),
    row("Inference", F::milliseconds, "tpot_mean_ms", "TPOT mean", latency<&InferenceTiming::tpot_ms, &Summary::mean>),
    {.id = "tpot_p50_ms",
     .group = "Inference",
     .title = "TPOT p50",
     .format = F::milliseconds,
     .in_csv = true,
     .meaning = "time between a token and the one before of the same request",
     .get = latency<&InferenceTiming::tpot_ms, &Summary::p50>,
     .compared = {"tpot", milliseconds_unit, lower}},
    row("Inference", F::milliseconds, "tpot_p99_ms", "TPOT p99", latency<&InferenceTiming::tpot_ms, &Summary::p99>, true),
    row("Inference", F::milliseconds, "request_tpot_p50_ms", "TPOT of requests p50",
        latency<&InferenceTiming::request_tpot_ms, &Summary::p50>),
    row("Inference", F::milliseconds, "request_tpot_p99_ms", "TPOT of requests p99",
        latency<&InferenceTiming::request_tpot_ms, &Summary::p99>),
    row("Inference", F::number, "tokens_per_second", "tokens/s", inference<&InferenceTiming::tokens_per_second>),
    {.id = "goodput", .group = "Inference", .title = "goodput", .words = goodput_words},
    {.id = "good_requests_per_second",
     .in_csv = true,
     .meaning = "goodput: requests a second whose time to first token and mean time per further token met the targets",
     .get = good_requests_per_second_of,
     .compared = {"good_requests", "1/s", higher}},
    {.id = "tflops",
     .in_csv = true,
     .last_in_csv = true,
     .meaning = "TFLOP/s: the operations that the variant declares, over its median time; none of what did not pass",
     .get = tflops_of},
    {.id = "gb_per_s",
     .in_csv = true,
     .last_in_csv = true,
     .meaning = "GB/s: the bytes that the variant declares, over its median time; none of what did not pass",
     .get = gb_per_s_of},
    {.id = "baseline_median_ms", .in_csv = true, .last_in_csv = true, .get = baseline_median_ms_of},
    {.id = "ceiling_from",
     .in_csv = true,
     .last_in_csv = true,
     .meaning =
         "the source of the ceiling that the lower bound stands on: measured on this GPU or host by aisp peak; computed from the "
         "chip's units and highest clock, or by the pair; recorded on another GPU of this model; a guess, a part of a "
         "theoretical "
         "peak, which reports mark with ~ and no summary counts",
     .words = ceiling_from_words},
};

}  // namespace

std::span<const Quantity> quantities() { return table; }

std::string goodput_text(const LatencyGoodput& goodput) {
  std::vector<std::string> targets;
  if (goodput.ttft_target_ms > 0) targets.push_back("TTFT " + base::display_ms(goodput.ttft_target_ms));
  if (goodput.tpot_target_ms > 0) targets.push_back("TPOT " + base::display_ms(goodput.tpot_target_ms));
  return fmt::format("{:.0f} %, {} requests/s ({})", goodput.percent, base::significant(goodput.requests_per_second),
                     base::join(targets, ", "));
}

std::optional<Range> gap_closed(const PairResult& pair, const VariantResult& variant) {
  constexpr double no_gap = 0.95;
  const Speedup* speedup = claimable(pair, variant);
  if (speedup == nullptr || pair.judged_by != time_metric || !variant.floor || !pair.variants.front().timing) return std::nullopt;
  const double floor = variant.floor->milliseconds / pair.variants.front().timing->summary.median;
  if (!(floor > 0 && floor < no_gap && speedup->low > 0)) return std::nullopt;
  // Ceilings are measured too: a little beyond them is at the limit.
  const auto percent = [&](double ratio) { return std::min(100.0, 100 * (1 - 1 / ratio) / (1 - floor)); };
  return Range{percent(speedup->value), percent(speedup->low), percent(speedup->high)};
}

}  // namespace aisp::evidence
