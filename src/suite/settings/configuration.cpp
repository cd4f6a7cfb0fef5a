// SPDX-License-Identifier: Apache-2.0
#include "suite/settings/configuration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/error.hpp"
#include "base/system/entropy.hpp"
#include "base/text.hpp"
#include "measure/energy.hpp"
#include "pair/all_variants.hpp"

namespace aisp::suite {
namespace {

const SettingRow& find_setting(std::string_view name, std::string_view origin) {
  std::vector<std::string> names;
  for (const SettingRow& setting : settings()) {
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

// Returns twice the time of windows of the user's length, with the time between them.
double energy_stage_s(const Pair& pair, double window_s) {
  const std::size_t variants = pair::all_variants(pair).size();
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

void apply(Configuration& configuration, std::string_view name, const std::vector<std::string>& values, std::string_view origin,
           std::string_view place) {
  if (place.empty()) place = origin;
  const SettingRow& setting = find_setting(name, place);
  try {
    setting.set(configuration, values);
  } catch (const std::invalid_argument& error) {
    const std::string where = origin == "flag" ? fmt::format("--{}", name) : fmt::format("{}: {}", place, name);
    const std::string given = base::one_line(fmt::format("{}", fmt::join(values, " ")), 100);
    throw base::Error{base::Exit::usage, fmt::format("{} '{}' {}", where, given, error.what())};
  }
  configuration.origins.insert_or_assign(std::string{name}, std::string{origin});
}

std::uint64_t drawn_seed() {
  // 53 bits, which every JSON reader holds exactly.
  return base::entropy() >> 11;
}

void settle_seed(Configuration& configuration) {
  constexpr std::uint64_t reproducible_seed = 42;
  if (!untouched(configuration, "seed")) return;
  configuration.seed = configuration.reproducible ? reproducible_seed : drawn_seed();
  configuration.origins.insert_or_assign("seed", configuration.reproducible ? "default" : "drawn");
}

std::string settle_shard(Configuration& configuration, const std::function<const char*(const char* name)>& variable) {
  struct Launcher {
    const char *index, *count, *first, *step;  // names of variables; the last two may be null: 0 and 1
  };
  constexpr std::array launchers{
      Launcher{"SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP"},
      Launcher{"JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", nullptr, nullptr}};
  if (!untouched(configuration, "shard")) return {};
  const auto value = [&](const char* name, int otherwise) {
    const char* text = name == nullptr ? nullptr : variable(name);
    if (text == nullptr || *text == '\0') return otherwise;
    if (const auto number = base::parse_number<int>(text); number && *number >= 0) return *number;
    throw base::Error{base::Exit::usage, fmt::format("{} '{}' must be a whole number; --shard i/n says which part to run", name,
                                                     base::one_line(text, 100))};
  };
  for (const Launcher& launcher : launchers) {
    const int id = value(launcher.index, -1), count = value(launcher.count, -1);
    if (id < 0) continue;
    if (count < 0)
      return fmt::format("{} is set and {} is not, so all pairs are run here; --shard i/n runs a part", launcher.index,
                         launcher.count);
    const int offset = id - value(launcher.first, 0), step = std::max(value(launcher.step, 1), 1);
    if (offset < 0 || offset % step != 0 || offset / step >= count)
      throw base::Error{base::Exit::usage, fmt::format("{} {} is not the number of one of {} shards in a row; give --shard i/n",
                                                       launcher.index, id, count)};
    configuration.shard = {offset / step + 1, count};
    configuration.origins.insert_or_assign("shard", launcher.index);
    return {};
  }
  return {};
}

run::Request request_for(const pair::Entry& entry, const Configuration& configuration, const Point& point) {
  const Overrides& own = entry.pair->overrides;
  run::Request request;
  static_cast<run::Settings&>(request) = configuration;
  request.target = entry.target();
  if (own.iterations > 0 && untouched(configuration, "iterations")) request.iterations = own.iterations;
  if (own.warmup > 0 && untouched(configuration, "warmup")) request.warmup = own.warmup;
  if (configuration.deep) request.counters = run::CounterLevel::deep;
  else if (configuration.profile == run::ProfileLevel::full) request.counters = run::CounterLevel::full;
  request.sizes = point.sizes;
  request.sweep_case = point.name;
  run::StageLimits& limits = request.limits;
  if (own.setup_seconds > 0) limits.setup = own.setup_seconds;
  if (own.warmup_seconds > 0) limits.warmup = own.warmup_seconds;
  if (own.measurement_seconds > 0) limits.measurement = own.measurement_seconds;
  // Extends the stage's limit for a longer budget of the user's.
  limits.measurement = std::max(limits.measurement, 3 * configuration.budget_s);
  limits.energy = std::max(limits.energy, energy_stage_s(*entry.pair, configuration.energy_window_s));
  for (double* limit : {&limits.setup, &limits.verify, &limits.warmup, &limits.measurement, &limits.audit, &limits.counters,
                        &limits.energy, &limits.profiling, &limits.teardown})
    *limit *= configuration.timeout_multiplier;
  return request;
}

nlohmann::json effective(const Configuration& configuration, std::span<const pair::Entry* const> selected) {
  nlohmann::json json = nlohmann::json::object();
  for (const SettingRow& setting : settings())
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
