// SPDX-License-Identifier: Apache-2.0
#include "suite/settings/launcher.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace aisp::suite {
namespace {

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

class LauncherEnvironment {
 public:
  explicit LauncherEnvironment(const std::function<const char*(const char*)>& variable) : variable_{variable} {}

  std::string text(const char* name) const {
    const char* value = *name == '\0' ? nullptr : variable_(name);
    return value == nullptr ? std::string{} : value;
  }
  int number(const char* name) const {
    const std::string value = text(name);
    if (const auto number = base::parse_number<int>(value); number && *number >= 0) return *number;
    throw Error{Exit::usage, fmt::format("{} '{}' must be a whole number; --rendezvous none runs this process by itself", name,
                                         base::one_line(value, 100))};
  }

 private:
  const std::function<const char*(const char*)>& variable_;
};

std::string host_of_first(const LauncherVariables& names, const LauncherEnvironment& environment) {
  if (std::string host = environment.text("MASTER_ADDR"); !host.empty()) return host;
  const std::string here = environment.text(names.local_count);
  if (!here.empty() && here == environment.text(names.count)) return "127.0.0.1";
  if (std::string host = first_host(environment.text(names.hosts)); !host.empty()) return host;
  throw Error{Exit::usage, fmt::format("{} started {} processes and does not say where the first one is; give its host with "
                                       "--rendezvous HOST:PORT or in MASTER_ADDR",
                                       names.launcher, environment.text(names.count))};
}

// torchrun has its own store at MASTER_PORT.
int port_of_first(const LauncherEnvironment& environment, const std::string& secret) {
  if (!environment.text("MASTER_PORT").empty() && environment.text("TORCHELASTIC_RUN_ID").empty())
    return environment.number("MASTER_PORT");
  return first_port + static_cast<int>(std::stoul(secret.substr(0, 6), nullptr, 16) % port_count);
}

void demand_place(const std::string& rendezvous) {
  const std::size_t colon = rendezvous.rfind(':');
  const auto port = colon == std::string::npos ? std::nullopt : base::parse_number<int>(rendezvous.substr(colon + 1));
  if (colon == 0 || !port || *port < 1 || *port > 65535)
    throw Error{Exit::usage, fmt::format("--rendezvous '{}' must be HOST:PORT or none", base::one_line(rendezvous, 100))};
}

}  // namespace

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
  const LauncherEnvironment environment{variable};
  const auto is_set = [&](const char* name) { return *name == '\0' || !environment.text(name).empty(); };
  const auto* names = std::ranges::find_if(launchers_known, [&](const LauncherVariables& each) {
    return is_set(each.index) && is_set(each.count) && is_set(each.needed);
  });
  if (names == std::end(launchers_known)) return std::nullopt;
  Launched launched{.launcher = names->launcher, .address = {}, .secret = {}};
  launched.index = environment.number(names->index);
  launched.count = environment.number(names->count);
  if (launched.index >= launched.count)
    throw Error{Exit::unfit, fmt::format("{} is {} and {} is {}, which is too small; start as many processes as it says",
                                         names->index, launched.index, names->count, launched.count)};
  if (launched.count == 1) return std::nullopt;
  if (!environment.text(names->local_index).empty()) launched.local_index = environment.number(names->local_index);
  launched.secret = base::sha256_hex(fmt::format("{} {} {} {}", environment.text("AISP_RENDEZVOUS_SECRET"), names->launcher,
                                                 environment.text(names->job), environment.text(names->step)));
  launched.address = "tcp:" + (rendezvous.empty() ? fmt::format("{}:{}", host_of_first(*names, environment),
                                                                port_of_first(environment, launched.secret))
                                                  : rendezvous);
  return launched;
}

}  // namespace aisp::suite
