// SPDX-License-Identifier: Apache-2.0
#include "evidence/json.hpp"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/json_fields.hpp"
#include "evidence/fields.hpp"
#include "evidence/profile/profile_fields.hpp"

namespace aisp::evidence {

static constexpr int deepest_nesting = 64;
static constexpr std::size_t longest_quote = 200;

template <class Visitor>
static void describe(Percentile& p, Visitor& visit) {
  visit("percent", p.percent);
  visit("value", p.value);
}

// Appends "_ms" to the names for times in milliseconds.
template <class Visitor>
static void describe_summary(Summary& s, Visitor& visit, const std::string& unit) {
  visit("iterations", s.count);
  visit("mean" + unit, s.mean);
  visit("median" + unit, s.median);
  visit("std" + unit, s.std);
  visit("min" + unit, s.min);
  visit("max" + unit, s.max);
  visit("p25" + unit, s.p25);
  visit("p50" + unit, s.p50);
  visit("p75" + unit, s.p75);
  visit("p90" + unit, s.p90);
  visit("p95" + unit, s.p95);
  visit("p99" + unit, s.p99);
  visit("percentiles" + unit, s.custom);
}
template <class Visitor>
static void describe(Summary& s, Visitor& visit) {
  describe_summary(s, visit, "");
}

template <class Visitor>
static void describe(GpuState& s, Visitor& visit) {
  visit("sm_clock_mhz", s.sm_clock_mhz);
  visit("memory_clock_mhz", s.memory_clock_mhz);
  visit("power_w", s.power_w);
  visit("temperature_c", s.temperature_c);
  visit("throttle_reasons", s.throttle_reasons);
}

template <class Visitor>
static void describe(EnergyRatio& r, Visitor& visit) {
  visit("value", r.value);
  visit("low", r.low);
  visit("high", r.high);
}

template <class Visitor>
static void describe(Energy& e, Visitor& visit) {
  visit("median_j", e.median_j);
  visit("low_j", e.low_j);
  visit("high_j", e.high_j);
  visit("average_w", e.average_w);
  visit("run_ms", e.run_ms);
  visit("gflop_per_j", e.gflop_per_j);
  visit("gb_per_j", e.gb_per_j);
  visit("ratio", e.ratio);
  visit("runs", e.runs);
  visit("raw_j", e.raw_j);
  visit("counter_step_ms", e.counter_step_ms);
}

template <class Visitor>
static void describe(Problem& p, Visitor& visit) {
  visit("stage", p.stage);
  visit("variant", p.variant);
  visit("check", p.check);
  visit("message", p.message);
  visit("advice", p.advice);
}

template <class Visitor>
static void describe(Timing& t, Visitor& visit) {
  describe_summary(t.summary, visit, "_ms");
  visit("offset_ms", t.offset_ms);
  visit("offset_accuracy_ms", t.offset_accuracy_ms);
  visit("clock_step_ms", t.clock_step_ms);
  visit("autocorrelation", t.autocorrelation);
  visit("sm_clock_mhz", t.sm_clock_mhz);
  visit("raw_times_ms", t.raw_times_ms);
  visit("host_times_ms", t.host_times_ms);
  visit("rounds", t.rounds);
}

template <class Visitor>
static void describe(Metric& m, Visitor& visit) {
  visit("name", m.name);
  visit("unit", m.unit);
  visit("better", m.better);
  visit("summary", m.summary);
  visit("raw", m.raw);
}

template <class Visitor>
static void describe(LatencyGoodput& g, Visitor& visit) {
  visit("ttft_target_ms", g.ttft_target_ms);
  visit("tpot_target_ms", g.tpot_target_ms);
  visit("good_requests", g.good_requests);
  visit("all_requests", g.all_requests);
  visit("percent", g.percent);
  visit("requests_per_second", g.requests_per_second);
}

template <class Visitor>
static void describe(InferenceTiming& t, Visitor& visit) {
  visit("ttft_ms", t.ttft_ms);
  visit("tpot_ms", t.tpot_ms);
  visit("request_tpot_ms", t.request_tpot_ms);
  visit("requests", t.requests);
  visit("tokens", t.tokens);
  visit("tokens_per_second", t.tokens_per_second);
  visit("goodput", t.goodput);
}

template <class Visitor>
static void describe(Speedup& s, Visitor& visit) {
  visit("value", s.value);
  visit("low", s.low);
  visit("high", s.high);
  visit("verdict", s.verdict);
  visit("effective_rounds", s.effective_rounds);
}

template <class Visitor>
static void describe(Gain& g, Visitor& visit) {
  visit("over", g.over);
  describe(g.ratio, visit);
}

template <class Visitor>
static void describe(LibraryShare& s, Visitor& visit) {
  visit("library", s.library);
  visit("percent", s.percent);
  visit("low", s.low);
  visit("high", s.high);
}

template <class Visitor>
static void describe(Floor& f, Visitor& visit) {
  visit("milliseconds", f.milliseconds);
  visit("percent", f.percent);
  visit("limiter", f.limiter);
  visit("ceiling", f.ceiling);
  visit("source", f.source);
  visit("ceiling_from", f.ceiling_from);
  visit("held_back_by", f.held_back_by);
  visit("limit_from", f.limit_from);
}

static void read_field(const json& from, Floor& value, const std::string& place) {
  Reader::read_plainly(from, value, place);
  if (!from.contains("ceiling_from")) value.ceiling_from = ceiling_from_of(value.source, value.limiter);
}

template <class Visitor>
static void describe(SampleChecks& c, Visitor& visit) {
  visit("samples", c.samples);
  visit("compared", c.compared);
  visit("first_on_inputs", c.first_on_inputs);
  visit("watched", c.watched);
  visit("wrong", c.wrong);
  visit("off", c.off);
}

template <class Visitor>
static void describe(Accuracy& a, Visitor& visit) {
  visit("relative_l2", a.relative_l2);
  visit("max_error", a.max_error);
  visit("limit_relative_l2", a.limit_relative_l2);
  visit("limit_max_error", a.limit_max_error);
  visit("versus_baseline_l2", a.versus_baseline_l2);
  visit("unquantized_l2", a.unquantized_l2);
  visit("samples", a.samples);
  visit("bitwise_repeatable", a.bitwise_repeatable);
}

template <class Visitor>
static void describe(MemoryUse& m, Visitor& visit) {
  visit("device_peak_bytes", m.device_peak_bytes);
  visit("device_allocated_bytes", m.device_allocated_bytes);
  visit("device_reserved_bytes", m.device_reserved_bytes);
  visit("device_driver_bytes", m.device_driver_bytes);
  visit("host_peak_rss_bytes", m.host_peak_rss_bytes);
}

template <class Visitor>
static void describe(KernelResources& k, Visitor& visit) {
  visit("name", k.name);
  visit("registers", k.registers);
  visit("local_bytes", k.local_bytes);
}

template <class Visitor>
static void describe(VariantResult& v, Visitor& visit) {
  visit("name", v.name);
  visit("role", v.role);
  visit("status", v.status);
  visit("reason", v.reason);
  visit("timing", v.timing);
  visit("speedup", v.speedup);
  visit("gain", v.gain);
  visit("library_share", v.library_share);
  visit("floor", v.floor);
  visit("accuracy", v.accuracy);
  visit("inference_timing", v.inference);
  visit("energy", v.energy);
  visit("metrics", v.metrics);
  visit("gpu_busy_ms", v.gpu_busy_ms);
  visit("kernels", v.kernels);
  visit("profile", v.profile);
  visit("counters", v.counters);
  visit("nsys_report", v.nsys_report);
  visit("prepare_ms", v.prepare_ms);
  visit("changes_precision", v.changes_precision);
  visit("computes_output", v.computes_output);
  visit("not_run", v.not_run);
  describe(v.cost, visit);
  visit("sample_checks", v.checks);
  visit("memory", v.memory);
  visit("output_digests", v.output_digests);
}

template <class Visitor>
static void describe(PairResult& p, Visitor& visit) {
  visit("schema_version", p.schema_version);
  visit("target", p.target);
  visit("chapter", p.chapter);
  visit("name", p.name);
  visit("teaches", p.teaches);
  visit("lesson", p.lesson);
  visit("source_digest", p.source_digest);
  visit("bound", p.bound);
  visit("device", p.device);
  visit("host_dependent", p.host_dependent);
  visit("gpus", p.gpus);
  visit("status", p.status);
  visit("reason", p.reason);
  visit("variants", p.variants);
  visit("ceilings", p.ceilings);
  visit("best", p.best);
  visit("judged_by", p.judged_by);
  visit("timing_mode", p.timing_mode);
  visit("start", p.start);
  visit("cache", p.cache);
  visit("stopped_because", p.stopped_because);
  visit("scale", p.scale);
  visit("sizes", p.sizes);
  visit("sizes_set", p.sizes_set);
  visit("case", p.sweep_case);
  visit("edges", p.edges);
  visit("seed", p.seed);
  visit("inputs_drawn", p.inputs_drawn);
  visit("inputs_checked", p.inputs_checked);
  visit("narrow_types", p.narrow_types);
  visit("reproducible", p.reproducible);
  visit("alternated", p.alternated);
  visit("gpu_states", p.gpu_states);
  visit("sampling_s", p.sampling_s);
  visit("duty_percent", p.duty_percent);
  visit("lost", p.lost);
  visit("errors", p.problems);
  visit("warnings", p.warnings);
  visit("notes", p.notes);
  visit("watchdog", p.watchdog);
  visit("timeout_stage", p.timeout_stage);
  visit("timeout_limit_seconds", p.timeout_limit_seconds);
  visit("timeout_duration_seconds", p.timeout_duration_seconds);
  visit("wall_s", p.wall_s);
  visit("ended_after_s", p.ended_after_s);
  visit("started_utc", p.started_utc);
  visit("log", p.log);
  visit("complete", p.complete);
  describe_unless_empty("machine", p.machine, visit);
}

template <class Visitor>
static void describe(SuiteResult& s, Visitor& visit) {
  visit("schema_version", s.schema_version);
  visit("run_id", s.run_id);
  visit("started_utc", s.started_utc);
  visit("wall_s", s.wall_s);
  visit("interrupted", s.interrupted);
  visit("pairs", s.pairs);
}

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

void to_json(json& to, const PairResult& result) {
  PairResult copy = result;
  Writer writer{to};
  describe(copy, writer);
}
void from_json(const json& from, PairResult& result) {
  Reader reader{from, "result"};
  describe(result, reader);
  take_drift_for_note(result);
}
void to_json(json& to, const SuiteResult& suite) {
  SuiteResult copy = suite;
  Writer writer{to};
  describe(copy, writer);
}
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
