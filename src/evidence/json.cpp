// SPDX-License-Identifier: Apache-2.0
#include "evidence/json.hpp"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/json_fields.hpp"
#include "evidence/fields.hpp"

namespace aisp::evidence {

static constexpr int deepest_nesting = 64;
static constexpr std::size_t longest_quote = 200;

AISP_DESCRIBE(Percentile, percent, value)

// Appends "_ms" to the names for times in milliseconds.
template <class Visitor>
void describe_summary(Summary& s, Visitor& visit, const std::string& unit) {
  const auto with_unit = [&](const std::string& name, auto& value) { visit(name + unit, value); };
  visit("iterations", s.count);
  AISP_VISIT(with_unit, s, mean, median, std, min, max, p25, p50, p75, p90, p95, p99);
  with_unit("percentiles", s.custom);
}
template <class Visitor>
void describe(Summary& s, Visitor& visit) {
  describe_summary(s, visit, "");
}

AISP_DESCRIBE(GpuState, sm_clock_mhz, memory_clock_mhz, power_w, temperature_c, throttle_reasons)
AISP_DESCRIBE(EnergyRatio, value, low, high)
AISP_DESCRIBE(Energy, median_j, low_j, high_j, average_w, run_ms, gflop_per_j, gb_per_j, ratio, runs, raw_j, counter_step_ms)
AISP_DESCRIBE(Problem, stage, variant, check, message, advice)

template <class Visitor>
void describe(Timing& t, Visitor& visit) {
  AISP_VISIT(visit, t, offset_ms, offset_accuracy_ms, clock_step_ms, autocorrelation, sm_clock_mhz, raw_times_ms, host_times_ms,
             rounds);
  describe_summary(t.summary, visit, "_ms");
}

AISP_DESCRIBE(Metric, name, unit, better, summary, raw)
AISP_DESCRIBE(LatencyGoodput, ttft_target_ms, tpot_target_ms, good_requests, all_requests, percent, requests_per_second)
AISP_DESCRIBE(InferenceTiming, ttft_ms, tpot_ms, request_tpot_ms, requests, tokens, tokens_per_second, goodput)
AISP_DESCRIBE(Speedup, value, low, high, verdict, effective_rounds)

template <class Visitor>
void describe(Gain& g, Visitor& visit) {
  visit("over", g.over);
  describe(g.ratio, visit);
}

AISP_DESCRIBE(LibraryShare, library, percent, low, high)
AISP_DESCRIBE(Floor, milliseconds, percent, limiter, ceiling, source, ceiling_from, held_back_by, limit_from)

static void read_field(const json& from, Floor& value, const std::string& place) {
  Reader::read_plainly(from, value, place);
  if (!from.contains("ceiling_from")) value.ceiling_from = ceiling_from_of(value.source, value.limiter);
}

AISP_DESCRIBE(SampleChecks, samples, compared, first_on_inputs, watched, wrong, off)
AISP_DESCRIBE(Accuracy, relative_l2, max_error, limit_relative_l2, limit_max_error, versus_baseline_l2, unquantized_l2, samples,
              bitwise_repeatable)
AISP_DESCRIBE(MemoryUse, device_peak_bytes, device_allocated_bytes, device_reserved_bytes, device_driver_bytes,
              host_peak_rss_bytes)
AISP_DESCRIBE(KernelResources, name, registers, local_bytes)

template <class Visitor>
void describe(VariantResult& v, Visitor& visit) {
  AISP_VISIT(visit, v, name, role, status, reason, timing, speedup, gain, library_share, floor, accuracy, energy, metrics,
             gpu_busy_ms, kernels, profile, counters, nsys_report, prepare_ms, changes_precision, computes_output, not_run,
             memory, output_digests);
  visit("inference_timing", v.inference);
  describe(v.cost, visit);
  visit("sample_checks", v.checks);
}

template <class Visitor>
void describe(PairResult& p, Visitor& visit) {
  AISP_VISIT(visit, p, schema_version, target, chapter, name, teaches, lesson, source_digest, bound, device, host_dependent, gpus,
             status, reason, variants, ceilings, best, judged_by, timing_mode, start, cache, stopped_because, scale, sizes,
             sizes_set, edges, seed, inputs_drawn, inputs_checked, narrow_types, reproducible, alternated, gpu_states, sampling_s,
             duty_percent, lost, warnings, notes, watchdog, timeout_stage, timeout_limit_seconds, timeout_duration_seconds,
             wall_s, ended_after_s, started_utc, log, complete);
  visit("case", p.sweep_case);
  visit("errors", p.problems);
  describe_unless_empty("machine", p.machine, visit);
}

AISP_DESCRIBE(SuiteResult, schema_version, run_id, started_utc, wall_s, interrupted, pairs)

// Until November 2026 drift was a warning that listed variants with their autocorrelations: "tiled (0.52), half (0.71)".
static void take_drift_for_note(PairResult& result) {
  const auto drift =
      std::ranges::find_if(result.warnings, [](const std::string& w) { return w.starts_with(drift_note_beginning); });
  if (drift == result.warnings.end()) return;
  double most = 0;
  for (std::size_t at = drift->find(" (0."); at != std::string::npos; at = drift->find(" (0.", at + 1))
    most = std::max(most, std::strtod(drift->c_str() + at + 2, nullptr));
  result.notes.push_back(drift_note(most));
  result.warnings.erase(drift);
}

void to_json(json& to, const PairResult& result) { to = base::json_of(result); }
void from_json(const json& from, PairResult& result) {
  Reader reader{from, "result"};
  describe(result, reader);
  take_drift_for_note(result);
}
void to_json(json& to, const SuiteResult& suite) { to = base::json_of(suite); }
void from_json(const json& from, SuiteResult& suite) {
  Reader reader{from, "suite"};
  describe(suite, reader);
}

std::string json_text(const json& value, int indent) { return value.dump(indent, ' ', false, json::error_handler_t::replace); }

namespace {

// Rejects equal keys: one parser takes the last of them, another the first, so such a file is ambiguous.
class Strictness {
 public:
  explicit Strictness(const std::string& source) : source_{source} {}

  void see(int level, json::parse_event_t event, const json& parsed) {
    if (level > deepest_nesting) throw base::Error{base::Exit::usage, source_ + ": nested too deeply to be one of our files"};
    if (event == json::parse_event_t::object_start) keys_.emplace_back();
    if (event == json::parse_event_t::object_end) keys_.pop_back();
    if (event == json::parse_event_t::key && !keys_.back().insert(parsed.get_ref<const std::string&>()).second)
      throw base::Error{base::Exit::usage, fmt::format("{}: the key {} comes twice in one object", source_,
                                                       json_text(parsed).substr(0, longest_quote))};
  }

 private:
  const std::string& source_;
  std::vector<std::set<std::string>> keys_;  // keys of the open objects
};

// Returns "parse error at line 1, column 3: ..." without the library's own numbering, and at most a line long.
std::string reason(const json::exception& error) {
  std::string text = error.what();
  if (const auto end = text.find("] "); text.starts_with("[json.exception") && end != std::string::npos) text.erase(0, end + 2);
  if (text.size() > longest_quote) text = text.substr(0, longest_quote) + " ...";
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7E) c = '?';
  return text;
}

}  // namespace

json parse_json(std::string_view text, const std::string& source) {
  Strictness strictness{source};
  const json::parser_callback_t look = [&](int level, json::parse_event_t event, json& parsed) {
    strictness.see(level, event, parsed);
    return true;
  };
  try {
    return json::parse(text, look);
  } catch (const json::exception& error) {
    throw base::Error{base::Exit::usage, fmt::format("{}: not valid JSON: {}", source, reason(error))};
  }
}

void demand_schema_version(const json& document, const std::string& place) {
  const auto found = document.find("schema_version");
  const int version = found == document.end() ? 0 : base::json_integer<int>(*found, place + ": schema_version");
  if (version == schema_version) return;
  throw base::Error{base::Exit::usage, fmt::format("{}: schema version {} where {} is known; use the aisp that wrote it", place,
                                                   version, schema_version)};
}

}  // namespace aisp::evidence
