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

// Hardware counters to read, in a stage of their own: those that a declared cost is compared with, or all.
enum class CounterLevel { none, deep, full };

using evidence::TimingMode;

// Minimal: what CUPTI's activity records show, without root. Full: hardware counters too, where they can be read.
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

// How a pair is measured: what the user sets, and what the parent hands on to the child.
struct Settings {
  TimingMode mode = TimingMode::events;
  int iterations = 20;            // minimum number of rounds
  int warmup = 5;                 // rounds
  bool fixed_iterations = false;  // stop at `iterations`
  double budget_s = 3;            // of sampling, while an interval is wider than wanted
  bool alternate = true;          // false: all samples of one variant, then the next (to show what alternation is worth)
  bool cold_start = false;        // the first execution in a fresh process is reported too
  bool reproducible = false;
  bool energy = false;         // joules a run, after the timed rounds
  double energy_window_s = 1;  // of each of its windows
  double ttft_target_ms = 0;   // of requests that count as good; 0: none
  double tpot_target_ms = 0;
  bool verify_only = false;  // each variant once, checked; nothing timed
  ProfileLevel profile = ProfileLevel::none;
  std::uint64_t seed = 42;          // a run draws its own unless one is set
  double scale = 1;                 // of workloads; for the child times the device's memory scale
  std::vector<double> percentiles;  // further ones for every summary
  double timeout_multiplier = 1;    // of all limits; in those of a request already
};

struct Request : Settings {
  std::string target;              // ch07:transpose
  std::vector<std::string> gpus;   // UUIDs; the child makes only these visible to CUDA
  int sm = 0;                      // compute capability of these times ten; 0 without any
  double confidence_width = 0.01;  // stop when the 95 % interval of every speedup is this narrow (relative)
  CounterLevel counters = CounterLevel::none;
  std::map<std::string, std::uint64_t> sizes;  // set by --size or by the case of a sweep
  std::string sweep_case;                      // its name; empty without --sweep
  StageLimits limits;
  std::string running_variant_page;  // where the child notes which variant it runs (pair/running_variant.hpp)
  std::string scratch_parent;        // folder in which the pair's scratch folder is made
  std::string run_folder;            // where <chapter>_<name>/profiles goes; empty: no traces are written
  bool own_process = false;          // the pair has one, so that its children are the pair's; not sent: the child itself knows
};

void to_json(nlohmann::json& json, const Request& request);
void from_json(const nlohmann::json& json, Request& request);
std::string_view to_string(ProfileLevel level);
// Nothing when `text` names none.
std::optional<ProfileLevel> profile_level(std::string_view text);

// Lines from child to parent on the result pipe:
//   {"stage":"setup","limit_s":30.0}          a stage begins; the parent kills the process group when the limit passes
//   {"stage_done":"setup","elapsed_s":0.41}
//   {"progress":{"round":12,"of":20}}         while sampling
//   {"result":{...}}                          evidence::PairResult, last line; absent when the child died
//   {"crash":["FILE+0xOFFSET",...]}           written by the handler of a signal that ends the child
//   (base/system/crash_trace.hpp)
//   {"partial":{...}}                         the same with complete = false, after verification and every second while sampling,
//   so that
//                                             what was measured survives a crash or a timeout
}  // namespace aisp::run
