// SPDX-License-Identifier: Apache-2.0
#include "suite/configuration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/error.hpp"
#include "base/text.hpp"
#include "measure/energy.hpp"

namespace aisp::suite {
namespace {

using Values = std::vector<std::string>;

[[noreturn]] void reject(const std::string& what_is_right) { throw std::invalid_argument{what_is_right}; }

const std::string& single(const Values& values) {
  if (values.size() != 1) reject("takes one value");
  return values.front();
}

template <class T>
T parse_number(std::string_view text, const char* what_is_right) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) reject(what_is_right);
  return value;
}

template <class T>
T number_between(const Values& values, T low, T high, const char* what_is_right) {
  const T value = parse_number<T>(single(values), what_is_right);
  if (!(value >= low && value <= high)) reject(what_is_right);
  return value;
}

bool parse_switch(const Values& values) {
  if (values.empty()) return true;
  const std::string& text = single(values);
  if (text == "true" || text == "1" || text == "on" || text == "yes") return true;
  if (text == "false" || text == "0" || text == "off" || text == "no") return false;
  reject("must be true or false");
}

Values split_commas(const Values& values) {
  Values parts;
  for (const std::string& value : values)
    for (const std::string& part : base::split(value, ','))
      if (!part.empty()) parts.push_back(part);
  return parts;
}

run::TimingMode parse_mode(const std::string& text) {
  for (const auto mode : {run::TimingMode::events, run::TimingMode::kernel, run::TimingMode::do_bench, run::TimingMode::timer})
    if (run::to_string(mode) == text) return mode;
  const std::vector<std::string> names{"events", "kernel", "do_bench", "timer"};
  const std::vector<std::string> near = base::nearest(names, text, 1);
  reject(fmt::format("must be events, kernel, do_bench or timer{}",
                     near.empty() ? "" : fmt::format("; did you mean {}?", near.front())));
}

void set_profile(Configuration& c, const Values& values) {
  const auto level = run::profile_level(single(values));
  if (!level) reject("must be none, minimal or full");
  c.profile = *level;
}

void set_percentiles(Configuration& c, const Values& values) {
  c.percentiles.clear();
  for (const std::string& part : split_commas(values)) {
    const double percent = parse_number<double>(part, "must be numbers from 0 to 100, as in 99.9,99.99");
    if (!(percent >= 0 && percent <= 100)) reject("must be numbers from 0 to 100, as in 99.9,99.99");
    c.percentiles.push_back(percent);
  }
}

void set_run_id(Configuration& c, const Values& values) {
  const std::string& text = single(values);
  const bool plain = std::all_of(text.begin(), text.end(),
                                 [](unsigned char ch) { return std::isalnum(ch) || ch == '-' || ch == '_' || ch == '.'; });
  if (text.empty() || !plain || text.front() == '.' || text.size() > 200)
    reject("names one folder: letters, digits, '-', '_' and '.', not starting with '.'");
  c.run_id = text;
}

double positive_duration(const Values& values) {
  const double seconds = parse_duration(single(values));
  if (!(seconds > 0)) reject("must be longer than zero");
  return seconds;
}

double target_ms(const Values& values) { return number_between(values, 0.0, 1e9, "must be milliseconds, 0 for no target"); }

constexpr const char* whole_number = "must be a whole number from 1 to 1000000";
constexpr const char* warmup_number = "must be a whole number from 0 to 1000000";

const Setting all_settings[] = {
    {"mode", "MODE", "how samples are timed: events, kernel, do_bench or timer", false,
     [](Configuration& c, const Values& v) { c.mode = parse_mode(single(v)); },
     [](const Configuration& c) { return nlohmann::json(run::to_string(c.mode)); }},
    {"iterations", "N", "minimum number of rounds; sampling goes on until the result is stable", false,
     [](Configuration& c, const Values& v) { c.iterations = number_between(v, 1, 1000000, whole_number); },
     [](const Configuration& c) { return nlohmann::json(c.iterations); }},
    {"fixed-iterations", "", "stop at --iterations, stable or not", false,
     [](Configuration& c, const Values& v) { c.fixed_iterations = parse_switch(v); },
     [](const Configuration& c) { return nlohmann::json(c.fixed_iterations); }},
    {"warmup", "N", "rounds before the first one that counts", false,
     [](Configuration& c, const Values& v) { c.warmup = number_between(v, 0, 1000000, warmup_number); },
     [](const Configuration& c) { return nlohmann::json(c.warmup); }},
    {"budget", "TIME", "sampling time of a pair whose result does not become stable, as in 10s [3s]", false,
     [](Configuration& c, const Values& v) { c.budget_s = positive_duration(v); },
     [](const Configuration& c) { return nlohmann::json(c.budget_s); }},
    {"timeout-multiplier", "X", "multiplies the time limit of every stage", false,
     [](Configuration& c, const Values& v) {
       c.timeout_multiplier = number_between(v, 0.001, 10000.0, "must be a number from 0.001 to 10000");
     },
     [](const Configuration& c) { return nlohmann::json(c.timeout_multiplier); }},
    {"suite-timeout", "TIME", "time limit of the whole run, as in 30m [4h]", false,
     [](Configuration& c, const Values& v) { c.suite_timeout_s = positive_duration(v); },
     [](const Configuration& c) { return nlohmann::json(c.suite_timeout_s); }},
    {"reproducible", "", "seed 42 unless --seed says otherwise, deterministic algorithms only", false,
     [](Configuration& c, const Values& v) { c.reproducible = parse_switch(v); },
     [](const Configuration& c) { return nlohmann::json(c.reproducible); }},
    {"cold-start", "", "report the first execution in a fresh process too", false,
     [](Configuration& c, const Values& v) { c.cold_start = parse_switch(v); },
     [](const Configuration& c) { return nlohmann::json(c.cold_start); }},
    {"energy", "", "joules a run, from the GPU's energy counter, after the timed rounds", false,
     [](Configuration& c, const Values& v) { c.energy = parse_switch(v); },
     [](const Configuration& c) { return nlohmann::json(c.energy); }},
    {"energy-window", "TIME", "for --energy: each of the 6 windows of a variant [1s]", false,
     [](Configuration& c, const Values& v) { c.energy_window_s = positive_duration(v); },
     [](const Configuration& c) { return nlohmann::json(c.energy_window_s); }},
    {"ttft-target-ms", "MS", "time to first token that a good request meets, for pairs with tokens", false,
     [](Configuration& c, const Values& v) { c.ttft_target_ms = target_ms(v); },
     [](const Configuration& c) { return nlohmann::json(c.ttft_target_ms); }},
    {"tpot-target-ms", "MS", "time per output token that a good request meets on average", false,
     [](Configuration& c, const Values& v) { c.tpot_target_ms = target_ms(v); },
     [](const Configuration& c) { return nlohmann::json(c.tpot_target_ms); }},
    {"no-alternate", "", "time one variant after the other instead of in turn", false,
     [](Configuration& c, const Values& v) { c.alternate = !parse_switch(v); },
     [](const Configuration& c) { return nlohmann::json(!c.alternate); }},
    {"profile", "LEVEL", "after timing, look inside each variant: none, minimal (CUPTI, no root) or full (counters too)", false,
     set_profile, [](const Configuration& c) { return nlohmann::json(run::to_string(c.profile)); }},
    {"seed", "N", "seed of all inputs", false,
     [](Configuration& c, const Values& v) {
       c.seed = parse_number<std::uint64_t>(single(v), "must be a whole number from 0 to 2^64 - 1");
     },
     [](const Configuration& c) { return nlohmann::json(c.seed); }},
    {"scale", "X", "fraction of every workload's size; such results are marked", false,
     [](Configuration& c, const Values& v) { c.scale = number_between(v, 0.0001, 1.0, "must be a number from 0.0001 to 1"); },
     [](const Configuration& c) { return nlohmann::json(c.scale); }},
    {"percentiles", "P,...", "further percentiles for every summary", true, set_percentiles,
     [](const Configuration& c) { return nlohmann::json(c.percentiles); }},
    {"gpus", "GPU,...", "GPUs to use, by index or UUID; all visible ones without it", true,
     [](Configuration& c, const Values& v) { c.gpus = split_commas(v); },
     [](const Configuration& c) { return nlohmann::json(c.gpus); }},
    {"jobs", "N", "pairs at once, each on a GPU of its own; one per GPU without it", false,
     [](Configuration& c, const Values& v) { c.jobs = number_between(v, 1, 1024, "must be a whole number from 1 to 1024"); },
     [](const Configuration& c) { return nlohmann::json(c.jobs); }},
    {"in-process", "", "run pairs in this process, for debuggers; a crash then ends the run", false,
     [](Configuration& c, const Values& v) { c.in_process = parse_switch(v); },
     [](const Configuration& c) { return nlohmann::json(c.in_process); }},
    {"artifacts-dir", "DIR", "where the folder of this run is made", false,
     [](Configuration& c, const Values& v) {
       if (single(v).empty()) reject("must not be empty");
       c.artifacts_dir = single(v);
     },
     [](const Configuration& c) { return nlohmann::json(c.artifacts_dir); }},
    {"run-id", "NAME", "name of that folder; a time stamp without it", false, set_run_id,
     [](const Configuration& c) { return nlohmann::json(c.run_id); }},
};

const Setting& find_setting(std::string_view name, std::string_view origin) {
  std::vector<std::string> names;
  for (const Setting& setting : all_settings) {
    if (setting.name == name) return setting;
    names.emplace_back(setting.name);
  }
  const std::vector<std::string> near = base::nearest(names, name, 1);
  throw base::Error{base::Exit::usage, fmt::format("{}: unknown setting '{}'{}", origin, name,
                                                   near.empty() ? "" : fmt::format("; did you mean '{}'?", near.front()))};
}

std::string_view origin_of(const Configuration& configuration, std::string_view name) {
  const auto found = configuration.origins.find(name);
  return found == configuration.origins.end() ? std::string_view{"default"} : std::string_view{found->second};
}

bool untouched(const Configuration& configuration, std::string_view name) { return configuration.origins.count(name) == 0; }

// Twice what windows of a length that the user chose take, with what passes between them.
double energy_stage_s(const Pair& pair, double window_s) {
  const std::size_t variants = 1 + pair.optimized.size() + (pair.peers ? pair.peers->size() : 0);
  return 2 * static_cast<double>(variants) * measure::energy_windows * (window_s + 0.5);
}

nlohmann::json overrides_of(const Configuration& configuration, const pair::Entry& entry) {
  const Overrides& own = entry.pair->overrides;
  const run::Request request = request_for(entry, configuration);
  nlohmann::json changed = nlohmann::json::object();
  const auto note = [&](const char* name, bool declared, const nlohmann::json& value) {
    if (declared)
      changed[name] = {{"value", value},
                       {"origin", untouched(configuration, name) ? "pair" : std::string{origin_of(configuration, name)}}};
  };
  note("iterations", own.iterations > 0, request.iterations);
  note("warmup", own.warmup > 0, request.warmup);
  note("setup-seconds", own.setup_seconds > 0, request.limits.setup);
  note("warmup-seconds", own.warmup_seconds > 0, request.limits.warmup);
  note("measurement-seconds", own.measurement_seconds > 0, request.limits.measurement);
  return changed;
}

}  // namespace

std::span<const Setting> settings() { return all_settings; }

double parse_duration(std::string_view text) {
  constexpr const char* right = "must be a time, as in 90s, 5m or 1.5h";
  if (text.empty()) reject(right);
  double unit_s = 1;
  switch (text.back()) {
    case 'h':
      unit_s = 3600;
      text.remove_suffix(1);
      break;
    case 'm':
      unit_s = 60;
      text.remove_suffix(1);
      break;
    case 's': text.remove_suffix(1); break;
    default: break;
  }
  const double number = parse_number<double>(text, right);
  if (!std::isfinite(number) || number < 0 || number > 1e7) reject(right);
  return number * unit_s;
}

void apply(Configuration& configuration, std::string_view name, const std::vector<std::string>& values, std::string_view origin,
           std::string_view place) {
  if (place.empty()) place = origin;
  const Setting& setting = find_setting(name, place);
  try {
    setting.set(configuration, values);
  } catch (const std::invalid_argument& error) {
    const std::string where = origin == "flag" ? fmt::format("--{}", name) : fmt::format("{}: {}", place, name);
    const std::string given = base::one_line(fmt::format("{}", fmt::join(values, " ")), 100);
    throw base::Error{base::Exit::usage, fmt::format("{} '{}' {}", where, given, error.what())};
  }
  configuration.origins.insert_or_assign(std::string{name}, std::string{origin});
}

run::Request request_for(const pair::Entry& entry, const Configuration& configuration) {
  const Overrides& own = entry.pair->overrides;
  run::Request request;
  request.target = entry.target();
  request.mode = configuration.mode;
  request.iterations = own.iterations > 0 && untouched(configuration, "iterations") ? own.iterations : configuration.iterations;
  request.warmup = own.warmup > 0 && untouched(configuration, "warmup") ? own.warmup : configuration.warmup;
  request.fixed_iterations = configuration.fixed_iterations;
  request.budget_s = configuration.budget_s;
  request.alternate = configuration.alternate;
  request.cold_start = configuration.cold_start;
  request.reproducible = configuration.reproducible;
  request.energy = configuration.energy;
  request.energy_window_s = configuration.energy_window_s;
  request.ttft_target_ms = configuration.ttft_target_ms;
  request.tpot_target_ms = configuration.tpot_target_ms;
  request.verify_only = configuration.verify_only;
  if (configuration.deep) request.counters = run::CounterLevel::deep;
  else if (configuration.profile == run::ProfileLevel::full) request.counters = run::CounterLevel::full;
  request.seed = configuration.seed;
  request.scale = configuration.scale;
  request.profile = configuration.profile;
  request.percentiles = configuration.percentiles;
  run::StageLimits& limits = request.limits;
  if (own.setup_seconds > 0) limits.setup = own.setup_seconds;
  if (own.warmup_seconds > 0) limits.warmup = own.warmup_seconds;
  if (own.measurement_seconds > 0) limits.measurement = own.measurement_seconds;
  // A budget that the user made longer than the stage must not run into its limit.
  limits.measurement = std::max(limits.measurement, 3 * configuration.budget_s);
  limits.energy = std::max(limits.energy, energy_stage_s(*entry.pair, configuration.energy_window_s));
  for (double* limit : {&limits.setup, &limits.verify, &limits.warmup, &limits.measurement, &limits.audit, &limits.counters,
                        &limits.energy, &limits.profiling, &limits.teardown})
    *limit *= configuration.timeout_multiplier;
  return request;
}

nlohmann::json effective(const Configuration& configuration, std::span<const pair::Entry* const> selected) {
  nlohmann::json json = nlohmann::json::object();
  for (const Setting& setting : all_settings)
    json[std::string{setting.name}] = {{"value", setting.show(configuration)},
                                       {"origin", std::string{origin_of(configuration, setting.name)}}};
  nlohmann::json pairs = nlohmann::json::object();
  for (const pair::Entry* entry : selected)
    if (nlohmann::json changed = overrides_of(configuration, *entry); !changed.empty())
      pairs[entry->target()] = std::move(changed);
  json["pairs"] = std::move(pairs);
  return json;
}

}  // namespace aisp::suite
