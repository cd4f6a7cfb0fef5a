// SPDX-License-Identifier: Apache-2.0
#include "suite/settings/configuration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/error.hpp"
#include "base/text.hpp"
#include "pair/sizes.hpp"

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
  const std::optional<T> value = base::parse_number<T>(text);
  if (!value) reject(what_is_right);
  return *value;
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
  if (const auto mode = base::find_word<run::TimingMode>(text)) return *mode;
  constexpr auto words = base::all_words<run::TimingMode>();
  const std::vector<std::string> names{words.begin(), words.end()};
  const std::vector<std::string> near = base::nearest(names, text, 1);
  reject(fmt::format("must be {} or {}{}", fmt::join(names.begin(), names.end() - 1, ", "), names.back(),
                     near.empty() ? "" : fmt::format("; did you mean {}?", near.front())));
}

void set_profile(Configuration& c, const Values& values) {
  const auto level = run::profile_level(single(values));
  if (!level) reject("must be none, minimal or full");
  c.profile = *level;
}

void set_percentiles(Configuration& c, const Values& values) {
  constexpr std::size_t most = 100;
  const Values parts = split_commas(values);
  if (parts.size() > most) reject(fmt::format("are {} numbers, {} at most", parts.size(), most));
  if (parts.empty() && !values.empty()) reject("must be numbers from 0 to 100, as in 99.9,99.99");
  c.percentiles.clear();
  for (const std::string& part : parts) {
    const double percent = parse_number<double>(part, "must be numbers from 0 to 100, as in 99.9,99.99");
    if (!(percent >= 0 && percent <= 100)) reject("must be numbers from 0 to 100, as in 99.9,99.99");
    c.percentiles.push_back(percent);
  }
}

// Whether this machine has these GPUs is checked later.
void set_gpus(Configuration& c, const Values& values) {
  c.gpus = split_commas(values);
  for (const std::string& name : c.gpus) {
    const bool is_index = std::ranges::all_of(name, [](unsigned char letter) { return std::isdigit(letter) != 0; });
    if (!is_index && !name.starts_with("GPU-") && !name.starts_with("MIG-"))
      reject("must be numbers of GPUs or UUIDs, as in 0,2 or GPU-1b2c");
  }
  if (c.gpus.empty() && !values.empty()) reject("must be numbers of GPUs or UUIDs, as in 0,2 or GPU-1b2c");
}

void set_sizes(Configuration& c, const Values& values) {
  pair::SizeLists sizes;
  for (const std::string& value : values)
    if (!value.empty()) {
      pair::SizeLists more = pair::parse_size_lists(value);
      sizes.merge(more);
      if (!more.empty()) reject(fmt::format("sets {} twice", more.begin()->first));
    }
  if (const std::size_t points = pair::grid_size(sizes); points > pair::most_points)
    reject(fmt::format("is a grid of {} points, {} at most; take fewer values", points, pair::most_points));
  c.sizes = std::move(sizes);
}

// A folder's name has 255 bytes on most file systems, and prefixes come before this one.
constexpr std::size_t longest_run_id = 200;

void set_run_id(Configuration& c, const Values& values) {
  const std::string& text = single(values);
  const bool plain = std::all_of(text.begin(), text.end(),
                                 [](unsigned char ch) { return std::isalnum(ch) || ch == '-' || ch == '_' || ch == '.'; });
  if (text.empty() || !plain || text.front() == '.' || text.front() == '-')
    reject("names one folder: letters, digits, '-', '_' and '.', beginning with a letter, a digit or '_'");
  if (text.size() > longest_run_id) reject(fmt::format("is {} letters long, {} at most", text.size(), longest_run_id));
  if (text == "latest") reject("stands for the newest run wherever a run is named; choose another name");
  c.run_id = text;
}

void set_shard(Configuration& c, const Values& values) {
  constexpr const char* right = "must be i/n, as in 2/8: the second of eight parts";
  const std::vector<std::string> parts = base::split(single(values), '/');
  if (parts.size() != 2) reject(right);
  const ShardNumber shard{parse_number<int>(parts[0], right), parse_number<int>(parts[1], right)};
  if (shard.count < 1 || shard.index < 1 || shard.index > shard.count) reject(right);
  c.shard = shard;
}

double positive_duration(const Values& values) {
  const double seconds = parse_duration(single(values));
  if (!(seconds > 0)) reject("must be longer than zero");
  return seconds;
}

template <auto member>
nlohmann::json show(const Configuration& c) {
  return c.*member;
}

template <auto member>
constexpr SettingRow toggle(std::string_view name, std::string_view help) {
  return {name, "", help, false, [](Configuration& c, const Values& v) { c.*member = parse_switch(v); }, show<member>};
}
template <auto member>
constexpr SettingRow duration(std::string_view name, std::string_view help) {
  return {name, "TIME", help, false, [](Configuration& c, const Values& v) { c.*member = positive_duration(v); }, show<member>};
}
template <auto member>
constexpr SettingRow target(std::string_view name, std::string_view help) {
  constexpr auto set = [](Configuration& c, const Values& v) {
    c.*member = number_between(v, 0.0, 1e9, "must be milliseconds, 0 for no target");
  };
  return {name, "MS", help, false, set, show<member>};
}

constexpr const char* whole_number = "must be a whole number from 1 to 1000000";
constexpr const char* warmup_number = "must be a whole number from 0 to 1000000";

const SettingRow all_settings[] = {
    {"mode", "MODE", "how samples are timed: events, kernel, do_bench or timer", false,
     [](Configuration& c, const Values& v) { c.mode = parse_mode(single(v)); },
     [](const Configuration& c) { return nlohmann::json(to_string(c.mode)); }},
    {"iterations", "N", "minimum number of rounds; sampling goes on until the result is stable", false,
     [](Configuration& c, const Values& v) { c.iterations = number_between(v, 1, 1000000, whole_number); },
     show<&Configuration::iterations>},
    toggle<&Configuration::fixed_iterations>("fixed-iterations", "stop at --iterations, stable or not"),
    {"warmup", "N", "rounds before the first one that counts", false,
     [](Configuration& c, const Values& v) { c.warmup = number_between(v, 0, 1000000, warmup_number); },
     show<&Configuration::warmup>},
    duration<&Configuration::budget_s>("budget", "sampling time of a pair whose result does not become stable, as in 10s [3s]"),
    {"timeout-multiplier", "X", "multiplies the time limit of every stage", false,
     [](Configuration& c, const Values& v) {
       c.timeout_multiplier = number_between(v, 0.001, 10000.0, "must be a number from 0.001 to 10000");
     },
     show<&Configuration::timeout_multiplier>},
    duration<&Configuration::suite_timeout_s>("suite-timeout", "time limit of the whole run, as in 30m [4h]"),
    toggle<&Configuration::reproducible>(
        "reproducible", "seed 42 unless --seed says otherwise, for timed rounds too; deterministic algorithms only"),
    toggle<&Configuration::cold_start>("cold-start", "report the first execution in a fresh process too"),
    toggle<&Configuration::energy>("energy", "joules a run, from the GPU's energy counter, after the timed rounds"),
    duration<&Configuration::energy_window_s>("energy-window", "for --energy: each of the 6 windows of a variant [1s]"),
    target<&Configuration::ttft_target_ms>("ttft-target-ms",
                                           "time to first token that a good request meets, for pairs with tokens"),
    target<&Configuration::tpot_target_ms>("tpot-target-ms", "time per output token that a good request meets on average"),
    {"no-alternate", "", "time one variant after the other instead of in turn", false,
     [](Configuration& c, const Values& v) { c.alternate = !parse_switch(v); },
     [](const Configuration& c) { return nlohmann::json(!c.alternate); }},
    {"profile", "LEVEL",
     "after timing, look inside each variant: none, minimal (CUPTI, no root) or full (counters too), which --profile alone means",
     false, set_profile, [](const Configuration& c) { return nlohmann::json(run::to_string(c.profile)); }, "full"},
    {"seed", "N", "of the inputs of verification; of timed ones with --reproducible alone [drawn for each run]", false,
     [](Configuration& c, const Values& v) {
       c.seed = parse_number<std::uint64_t>(single(v), "must be a whole number from 0 to 2^64 - 1");
     },
     show<&Configuration::seed>},
    {"scale", "X", "fraction of every workload's size; such results are marked", false,
     [](Configuration& c, const Values& v) { c.scale = number_between(v, 0.0001, 1.0, "must be a number from 0.0001 to 1"); },
     show<&Configuration::scale>},
    {"size", "NAME=N,...",
     "sizes of the pair's workload, as aisp explain PAIR lists them; a list (m=64,128) or a range (m=1024:16384:*2, k=32:48:+4) "
     "measures each value and draws curves, several make a grid; such results are marked",
     true, set_sizes, [](const Configuration& c) { return nlohmann::json(pair::size_lists_text(c.sizes)); }},
    toggle<&Configuration::sweep>("sweep", "measure each pair once for each of the cases that it declares"),
    {"percentiles", "P,...", "further percentiles for every summary", true, set_percentiles, show<&Configuration::percentiles>},
    {"gpus", "GPU,...", "GPUs to use, by index or UUID; all visible ones without it", true, set_gpus, show<&Configuration::gpus>},
    {"jobs", "N", "pairs at once, those on GPUs each on its own; one per GPU without it", false,
     [](Configuration& c, const Values& v) { c.jobs = number_between(v, 1, 1024, "must be a whole number from 1 to 1024"); },
     show<&Configuration::jobs>},
    toggle<&Configuration::in_process>("in-process", "run pairs in this process, for debuggers; a crash then ends the run"),
    {"artifacts-dir", "DIR", "where the folder of this run is made", false,
     [](Configuration& c, const Values& v) {
       if (single(v).empty()) reject("must not be empty");
       c.artifacts_dir = single(v);
     },
     show<&Configuration::artifacts_dir>},
    {"shard", "i/n",
     "run the i-th of n parts of the selection, as on the i-th of n machines; aisp merge makes one run of them [the task of a "
     "Slurm "
     "array or indexed Job]",
     false, set_shard, [](const Configuration& c) { return nlohmann::json(fmt::format("{}/{}", c.shard.index, c.shard.count)); }},
    {"run-id", "NAME", "name of that folder; a time stamp without it", false, set_run_id, show<&Configuration::run_id>},
};

}  // namespace

std::span<const SettingRow> settings() { return all_settings; }

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

}  // namespace aisp::suite
