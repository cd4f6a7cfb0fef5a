// SPDX-License-Identifier: Apache-2.0
#include "suite/settings/configuration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/digest.hpp"
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

using base::Error;
using base::Exit;

// Names of a launcher's variables; empty: it has none.
struct LauncherVariables {
  const char *launcher, *index, *count, *local_index;
  const char* local_count;  // as text, equal to the count if all processes are on one machine
  const char* hosts;        // process 0 is on the first
  const char *job, *step;   // identify the run
  const char* needed;       // must be set too
};

// A launcher may itself be started by one that stands below it, as torchrun by srun, and mpirun starts its daemons with srun.
// MPICH's variables are also set by Slurm's plugins, without MPI_LOCALRANKID.
constexpr LauncherVariables launchers_known[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "", "", "TORCHELASTIC_RUN_ID", "MASTER_PORT", ""},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "SLURM_JOB_NODELIST", "PMIX_NAMESPACE", "", ""},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "SLURM_JOB_NODELIST", "", "", "MPI_LOCALRANKID"},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST",
     "SLURM_JOB_ID", "SLURM_STEP_ID", ""},
    {"Kubernetes", "JOB_COMPLETION_INDEX", "WORLD_SIZE", "", "", "", "", "", ""},
};

// Ports below those that systems give to outgoing connections, and below those of Kubernetes' services.
constexpr int first_port = 20000, port_count = 10000;

using Variable = std::function<const char*(const char* name)>;

std::string text_in(const Variable& variable, const char* name) {
  const char* const value = name == nullptr || *name == '\0' ? nullptr : variable(name);
  return value == nullptr ? std::string{} : value;
}
// `advice`: what to do where it is none.
int number_in(const Variable& variable, const char* name,
              std::string_view advice = "--rendezvous none runs this process by itself") {
  const std::string value = text_in(variable, name);
  if (const auto number = base::parse_number<int>(value); number && *number >= 0) return *number;
  throw Error{Exit::usage, fmt::format("{} '{}' must be a whole number; {}", name, base::one_line(value, 100), advice)};
}

std::string host_of_first(const LauncherVariables& names, const Variable& variable) {
  if (std::string host = text_in(variable, "MASTER_ADDR"); !host.empty()) return host;
  const std::string here = text_in(variable, names.local_count);
  if (!here.empty() && here == text_in(variable, names.count)) return "127.0.0.1";
  if (std::string host = first_host(text_in(variable, names.hosts)); !host.empty()) return host;
  throw Error{Exit::usage, fmt::format("{} started {} processes and does not say where the first one is; give its host with "
                                       "--rendezvous HOST:PORT or in MASTER_ADDR",
                                       names.launcher, text_in(variable, names.count))};
}

// torchrun has its own store at MASTER_PORT.
int port_of_first(const Variable& variable, const std::string& secret) {
  if (!text_in(variable, "MASTER_PORT").empty() && text_in(variable, "TORCHELASTIC_RUN_ID").empty())
    return number_in(variable, "MASTER_PORT");
  return first_port + static_cast<int>(std::stoul(secret.substr(0, 6), nullptr, 16) % port_count);
}

void demand_place(const std::string& rendezvous) {
  const std::size_t colon = rendezvous.rfind(':');
  const auto port = colon == std::string::npos ? std::nullopt : base::parse_number<int>(rendezvous.substr(colon + 1));
  if (colon == 0 || !port || *port < 1 || *port > 65535)
    throw Error{Exit::usage, fmt::format("--rendezvous '{}' must be HOST:PORT or none", base::one_line(rendezvous, 100))};
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
    return text_in(variable, name).empty() ? otherwise : number_in(variable, name, "--shard i/n says which part to run");
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

std::string first_host(const std::string& list) {
  std::string host;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const std::size_t end = std::min(list.find(']', i), list.size());
    host += list.substr(i + 1, std::min(list.find_first_of(",-]", i), end) - i - 1);
    i = end;
  }
  return host;
}

std::optional<Launched> find_launcher(const std::string& rendezvous,
                                      const std::function<const char*(const char* name)>& variable) {
  if (rendezvous == "none") return std::nullopt;
  if (!rendezvous.empty()) demand_place(rendezvous);
  const auto is_set = [&](const char* name) { return *name == '\0' || !text_in(variable, name).empty(); };
  const auto* names = std::ranges::find_if(launchers_known, [&](const LauncherVariables& each) {
    return is_set(each.index) && is_set(each.count) && is_set(each.needed);
  });
  if (names == std::end(launchers_known)) return std::nullopt;
  Launched launched{.launcher = names->launcher, .address = {}, .secret = {}};
  launched.index = number_in(variable, names->index);
  launched.count = number_in(variable, names->count);
  if (launched.index >= launched.count)
    throw Error{Exit::unfit, fmt::format("{} is {} and {} is {}, which is too small; start as many processes as it says",
                                         names->index, launched.index, names->count, launched.count)};
  if (launched.count == 1) return std::nullopt;
  if (!text_in(variable, names->local_index).empty()) launched.local_index = number_in(variable, names->local_index);
  launched.secret = base::sha256_hex(fmt::format("{} {} {} {}", text_in(variable, "AISP_RENDEZVOUS_SECRET"), names->launcher,
                                                 text_in(variable, names->job), text_in(variable, names->step)));
  launched.address = "tcp:" + (rendezvous.empty() ? fmt::format("{}:{}", host_of_first(*names, variable),
                                                                port_of_first(variable, launched.secret))
                                                  : rendezvous);
  return launched;
}

}  // namespace aisp::suite
