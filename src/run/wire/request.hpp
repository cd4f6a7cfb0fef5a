// SPDX-License-Identifier: Apache-2.0
// The parent's request to the child that runs one pair, and the child's messages while it runs. Both as JSON, one object a line.
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "evidence/words.hpp"

namespace aisp::run {

// The hardware counters to read, in a stage of their own: those that a declared cost is compared with, or all.
enum class CounterLevel { none, deep, full };

using evidence::TimingMode;

// Minimal: CUPTI's activity records, without root. Full: hardware counters too, if they can be read.
enum class ProfileLevel { none, minimal, full };

struct StageLimits {  // seconds, already multiplied
  double setup = 30;
  double verify = 60;
  double warmup = 15;
  double measurement = 15;
  double audit = 30;
  double counters = 180;
  double energy = 60;
  double profiling = 180;
  double teardown = 10;
};

// The settings of a measurement: the user's, which the parent hands on to the child.
struct Settings {
  TimingMode mode = TimingMode::events;
  int iterations = 20;            // minimum number of rounds
  int warmup = 5;                 // rounds
  bool fixed_iterations = false;  // stop at `iterations`
  double budget_s = 3;            // limit of sampling while an interval is wider than wanted
  bool alternate = true;          // false: all samples of one variant, then the next (to show what alternation is worth)
  bool cold_start = false;        // the first execution in a fresh process is reported too
  bool reproducible = false;
  bool energy = false;         // joules a run, after the timed rounds
  double energy_window_s = 1;  // length of each window
  double ttft_target_ms = 0;   // upper limit for requests that count as good; 0: none
  double tpot_target_ms = 0;
  bool verify_only = false;  // only verifies; nothing is timed
  ProfileLevel profile = ProfileLevel::none;
  std::uint64_t seed = 42;          // a run draws its own unless one is set
  double scale = 1;                 // of workloads; in the child's request already times the device's memory scale
  std::vector<double> percentiles;  // additional percentiles for every summary
  double timeout_multiplier = 1;    // multiplies all limits; a request's limits include it
};

struct Request : Settings {
  std::string target;              // ch07:transpose
  std::vector<std::string> gpus;   // UUIDs; the child makes only these visible to CUDA
  int sm = 0;                      // their compute capability times ten; 0 without GPUs
  double confidence_width = 0.01;  // stop when the 95 % interval of every speedup is this narrow (relative)
  CounterLevel counters = CounterLevel::none;
  std::map<std::string, std::uint64_t> sizes;  // set by --size or by the case of a sweep
  std::string sweep_case;                      // its name; empty without --sweep
  StageLimits limits;
  int rank = 0, ranks = 1;           // which of the pair's processes this is, and how many it has
  int machines = 1;                  // number of machines that they are on
  std::string rank_hub, rank_key;    // where they meet (run/parent/rank_hub.hpp)
  std::string running_variant_page;  // page in which the child notes the running variant (pair/running_variant.hpp)
  std::string scratch_parent;        // folder in which the pair's scratch folder is made
  std::string own_folder;            // an empty one for the parent's answers, and a host pair's HOME and TMPDIR; empty: neither
  int baseline_runs = 0;             // only so many executions of the baseline, whose times are sent; 0: everything
  bool takes_turns = false;          // others run at the same time: it asks before it is measured, and before it goes on
  std::string run_folder;            // parent of <chapter>_<name>/profiles; empty: no traces are written
  bool own_process = false;          // the process is the pair's own, so its children are too; not sent: the child sets it
};

// The file in which the parent answers {"baseline_wanted":...}: a list of milliseconds, empty if they are not known.
inline constexpr const char* baseline_answer = "baseline_ms.json";

void to_json(nlohmann::json& json, const Request& request);
void from_json(const nlohmann::json& json, Request& request);
std::string_view to_string(ProfileLevel level);
// Returns the level that `text` names; nothing if it names none.
std::optional<ProfileLevel> profile_level(std::string_view text);

// Lines from child to parent on the result pipe:
//   {"stage":"setup","limit_s":30.0}          a stage begins; the parent kills the process group when the limit passes
//   {"stage_done":"setup","elapsed_s":0.41}
//   {"progress":{"round":12,"of":20}}         while sampling
//   {"turn_wanted":"quiet"}                   between two stages: the child waits until its parent writes a line into the pipe's
//                                             other direction; "work" for the stages after those that must be quiet
//   {"baseline_wanted":{"runs":3,"limit_s":2,"seed":7}}
//                                             a pair asks for times of its baseline in another process, and waits for
//                                             baseline_answer in its own folder
//   {"baseline_ms":[0.41,...]}                they are, from that process
//   {"result":{...}}                          evidence::PairResult, last line; absent when the child died
//   {"crash":["FILE+0xOFFSET",...]}           written by the handler of a signal that ends the child
//   (base/system/crash_trace.hpp)
//   {"partial":{...}}                         the same with complete = false, after verification and while sampling, at first
//                                             every second and later less often, so that what was measured survives a crash or
//                                             a timeout
}  // namespace aisp::run
