// SPDX-License-Identifier: Apache-2.0
// The settings of a suite. Four layers, the last wins: built-in defaults, the pair's own, a configuration file, flags. Each value
// has its origin recorded.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pair/registry.hpp"
#include "pair/sizes.hpp"
#include "run/wire/request.hpp"

namespace aisp::suite {

// One of `count` parts of the selection, counted from 1. One of one is all of it.
struct ShardNumber {
  int index = 1, count = 1;
};

struct Configuration : run::Settings {
  double suite_timeout_s = 4 * 3600;
  pair::SizeLists sizes;  // for every selected pair; several values are measured one after the other
  bool sweep = false;
  std::vector<std::string> gpus;  // indices or UUIDs; empty: all visible
  int jobs = 0;                   // children at once; 0: one per GPU
  bool in_process = false;
  std::string artifacts_dir = "artifacts";
  std::string run_id;  // empty: a time stamp
  ShardNumber shard;

  bool deep = false;  // set by `aisp verify --deep`

  std::map<std::string, std::string, std::less<>> origins;  // setting -> where it came from; absent: "default"
};

// One setting, given by a flag (--name) or in a file (name = value).
struct SettingRow {
  std::string_view name;   // "timeout-multiplier"
  std::string_view value;  // its value's placeholder in the help, "N"; empty: a switch
  std::string_view help;
  bool repeats;  // takes several values, or one with commas
  void (*set)(Configuration& configuration, const std::vector<std::string>& values);
  nlohmann::json (*show)(const Configuration& configuration);
  std::string_view alone{};  // the value of a flag that is given without one; empty: it takes one
};
std::span<const SettingRow> settings();

// Sets one value and notes its origin ("flag", "aisp.toml"). Throws base::Error (usage) that names the setting, the value and
// valid ones; for an unknown name, the nearest one. `place`, if given, is more precise than `origin` ("aisp.toml:3").
void apply(Configuration& configuration, std::string_view name, const std::vector<std::string>& values, std::string_view origin,
           std::string_view place = {});

// Converts "90", "90s", "5m", "1.5h" into seconds; throws std::invalid_argument.
double parse_duration(std::string_view text);

// Returns a seed from the system's entropy, so that no pair can know it; below 2^53, which every JSON reader can represent.
std::uint64_t drawn_seed();
// Sets a seed if none is given: 42 for a reproducible run, a random one for every other.
void settle_seed(Configuration& configuration);

// Takes the shard, if none is given, from the Slurm array or the indexed Job of Kubernetes (JOB_COMPLETIONS says of how many) in
// which this process runs. `variable` gives the value of an environment variable, or null. Returns what the user should know of
// an index without a count; throws base::Error (usage) for one that is not in range.
std::string settle_shard(Configuration& configuration, const std::function<const char*(const char* name)>& variable);

// One of a pair's measurements in a run (suite/selection.hpp).
struct Point {
  std::string name;     // distinguishes it from the pair's others; empty: it is the only one
  pair::SizeMap sizes;  // set by --size or by a case
};

// Returns the request to the child of `entry` at `point`: the pair's own overrides unless the user set something else.
run::Request request_for(const pair::Entry& entry, const Configuration& configuration, const Point& point = {});

// Returns {"iterations": {"value": 20, "origin": "default"}, ...}, and under "pairs" the overrides of single pairs.
nlohmann::json effective(const Configuration& configuration, std::span<const pair::Entry* const> selected);

struct FileSetting {
  std::string name;  // with '-', as the flag has it
  std::vector<std::string> values;
  int line = 0;
};

// Throws base::Error (usage), "SOURCE:LINE: ...", for anything else and for a setting that comes twice.
std::vector<FileSetting> parse_settings(std::string_view text, const std::string& source);

// Applies all settings or none.
void apply_text(Configuration& configuration, std::string_view text, const std::string& source);
void apply_file(Configuration& configuration, const std::filesystem::path& file);

// The launcher that started this process together with others (srun, mpirun, torchrun, an indexed Job), from the variables that
// it sets.

struct Launched {
  std::string launcher;  // "Slurm"
  int index = 0, count = 1;
  int local_index = 0;  // among those on this machine
  std::string address;  // where process 0 listens (base/system/message_link.hpp)
  std::string secret;   // the same in all processes of the run, and in no others
};

// Returns this process's place among those that were started with it; nothing if it is one by itself. `rendezvous`: HOST:PORT,
// where process 0 listens; "none", if the launcher is to be ignored; empty, if the launcher says where. `variable` gives the
// value of an environment variable, or null. Throws base::Error for variables that contradict each other.
std::optional<Launched> find_launcher(const std::string& rendezvous,
                                      const std::function<const char*(const char* name)>& variable);

// Returns the first host of a list of Slurm's: "gpu[007-010,12]" gives "gpu007".
std::string first_host(const std::string& list);

}  // namespace aisp::suite
