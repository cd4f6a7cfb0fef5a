// SPDX-License-Identifier: Apache-2.0
#include "cli/suite_flags.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "base/text.hpp"
#include "cli/flags.hpp"
#include "cli/output.hpp"
#include "evidence/expectations/fingerprint.hpp"
#include "suite/settings/configuration.hpp"

namespace aisp::cli {

namespace {

using base::Error;
using base::Exit;

constexpr const char* default_config_file = "aisp.toml";

// " [20]"; nothing for values whose help says it, and where nothing is the standard.
std::string standard_value(const suite::SettingRow& setting) {
  if (setting.help.ends_with(']')) return {};
  const nlohmann::json value = setting.show(suite::Configuration{});
  if (setting.value == "TIME" || value == 0) return {};
  if (value.is_number_float()) return fmt::format(" [{:g}]", value.get<double>());
  if (value.is_number()) return fmt::format(" [{}]", value.dump());
  if (value.is_string() && !value.get<std::string>().empty()) return fmt::format(" [{}]", value.get<std::string>());
  return {};
}

void add_setting(CLI::App& app, SuiteFlags& flags, const suite::SettingRow& setting) {
  const std::string name{setting.name};
  const std::string flag = "--" + name;
  if (setting.value.empty()) {
    // As text, so that --flag=false overrides a configuration file or a resumed run, and what is neither is told as for others.
    app.add_flag(flag, flags.switches[name], std::string{setting.help})->group("Settings");
    return;
  }
  CLI::Option* option = app.add_option(flag, flags.values[name], std::string{setting.help} + standard_value(setting));
  if (!setting.alone.empty()) option->default_str(std::string{setting.alone});
  option->type_name(std::string{setting.value})
      ->expected(setting.alone.empty() ? 1 : 0, 1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group("Settings");
}

}  // namespace

void add_target_flags(CLI::App& app, TargetFlags& flags) {
  app.add_option("TARGET", flags.words,
                 "pairs: all, ch07, ch07:transpose, ch07:*gemm* or a name; several, also with commas between them [all]")
      ->type_name("");
  add_repeated(app, "-t,--targets", flags.targets, "TARGET,...", "the same as TARGET; may be repeated");
}

void add_suite_flags(CLI::App& app, SuiteFlags& flags, const std::vector<std::string>& without) {
  add_target_flags(app, flags);
  const auto left_out = [&](std::string_view name) { return std::find(without.begin(), without.end(), name) != without.end(); };
  for (const suite::SettingRow& setting : suite::settings())
    if (!left_out(setting.name)) add_setting(app, flags, setting);
  if (!left_out("profile")) app.add_flag("--no-profile", flags.no_profile, "the same as --profile none")->group("Settings");
  add_repeated(app, "--config", flags.config_files, "FILE", "settings in TOML [aisp.toml, where there is one]");
  app.add_option("--json", flags.json, "the results as JSON, '-' for the standard output, where nothing else appears then")
      ->type_name("FILE");
  app.add_flag("--allow-skipped", flags.allow_skipped, "exit 0, not 5, when nothing could run on this machine");
  add_require(app, flags.require,
              "exit 4 unless something ran on a GPU (gpu), on this hardware (h200, 2x_h100, host), or so many pairs ran (20); "
              "repeats");
  app.add_option(
         "--rendezvous", flags.rendezvous,
         "where the processes of one launcher (srun, mpirun, torchrun, an indexed Job) meet to be one run: the host of the "
         "first and a free port; none: each is a run by itself [as the launcher says]")
      ->type_name("HOST:PORT");
  app.add_option("--rendezvous-timeout", flags.rendezvous_timeout, "how long they wait for one another [5m]")->type_name("TIME");
  app.add_flag("-q,--quiet", flags.quiet, "the summary only");
  app.add_option("--color", flags.color, "auto, always or never [auto]")->type_name("WHEN");
}

suite::Configuration make_configuration(const SuiteFlags& flags, suite::Configuration configuration) {
  std::error_code ignored;
  if (flags.config_files.size() > 1)
    throw base::Error{base::Exit::usage,
                      fmt::format("--config is given twice, with {} and {}; put all settings into one file",
                                  base::one_line(flags.config_files[0], 60), base::one_line(flags.config_files[1], 60))};
  if (!flags.config_files.empty()) suite::apply_file(configuration, flags.config_files.front());
  else if (std::filesystem::is_regular_file(default_config_file, ignored)) suite::apply_file(configuration, default_config_file);
  for (const suite::SettingRow& setting : suite::settings()) {
    const auto found = flags.values.find(std::string{setting.name});
    if (found == flags.values.end() || found->second.empty()) continue;
    // The last one wins, so that a script's flags can be overridden at its end.
    const std::vector<std::string>& values = found->second;
    suite::apply(configuration, setting.name, setting.repeats ? values : std::vector{values.back()}, "flag");
  }
  for (const auto& [name, text] : flags.switches)
    if (!text.empty()) suite::apply(configuration, name, {text}, "flag");
  if (flags.no_profile) suite::apply(configuration, "profile", {"none"}, "flag");
  suite::settle_seed(configuration);
  return configuration;
}

void note_standing_settings(const suite::Configuration& configuration) {
  std::vector<std::string> texts;
  for (const suite::SettingRow& setting : suite::settings()) {
    const auto origin = configuration.origins.find(setting.name);
    if (origin == configuration.origins.end() || origin->second != default_config_file) continue;
    const nlohmann::json value = setting.show(configuration);
    texts.push_back(fmt::format("{} {}", setting.name, value.is_string() ? value.get<std::string>() : value.dump()));
  }
  if (!texts.empty()) note(fmt::format("aisp: {} sets {}", default_config_file, base::join(texts, ", ")));
}

std::vector<std::string> target_list(const TargetFlags& flags) {
  std::vector<std::string> given = flags.targets, targets;
  given.insert(given.end(), flags.words.begin(), flags.words.end());
  for (const std::string& value : given) {
    const std::size_t before = targets.size();
    for (const std::string& part : base::split(value, ','))
      if (const std::string_view trimmed = base::trim(part); !trimmed.empty()) targets.emplace_back(trimmed);
    if (targets.size() == before)
      throw Error{Exit::usage, fmt::format("the target '{}' names nothing; leave it out for all pairs", value)};
  }
  return targets;
}

namespace {

using base::Error;
using base::Exit;
using evidence::PairResult;
using evidence::Status;

bool ran(const PairResult& result) { return result.status != Status::skipped; }

// Those of each number of GPUs that a pair may take here, and that of host pairs.
std::set<std::string> possible_keys(const machine::Machine& machine, const std::vector<int>& gpus) {
  std::set<std::string> keys{machine::hardware_key(machine, {})};
  for (std::size_t first = 0; first < gpus.size(); ++first)
    for (std::size_t many = 1; first + many <= gpus.size(); ++many) {
      const auto begin = gpus.begin() + static_cast<std::ptrdiff_t>(first);
      keys.insert(machine::hardware_key(machine, {begin, begin + static_cast<std::ptrdiff_t>(many)}));
    }
  return keys;
}

}  // namespace

void add_require(CLI::App& app, std::vector<std::string>& given, const char* help) {
  add_repeated(app, "--require", given, "WHAT,...", help);
}

Requirements::Requirements(const std::vector<std::string>& given) {
  for (const std::string& value : given)
    for (const std::string& field : base::split(value, ',')) {
      const std::string word{base::trim(field)};
      const auto is_letter = [](unsigned char c) { return std::islower(c) != 0; };
      const bool is_key = std::ranges::any_of(word, is_letter) &&
                          std::ranges::all_of(word, [&](unsigned char c) { return is_letter(c) || std::isdigit(c) || c == '_'; });
      const std::optional<std::size_t> number = base::parse_number<std::size_t>(word);
      if (!is_key && number.value_or(0) == 0)
        throw Error{
            Exit::usage,
            fmt::format("--require '{}' must be gpu, a key of hardware as h200 (the first line of aisp doctor says which this "
                        "machine has), or a number of pairs from 1 on",
                        base::one_line(word, 40))};
      if (number) pairs_ = std::max(pairs_, *number);
      else if (word == "gpu") gpu_ = true;
      else hardware_.push_back(word);
    }
}

void Requirements::demand_possible(const machine::Machine& machine, const std::vector<int>& gpus) const {
  if (gpu_ && gpus.empty())
    throw Error{Exit::unfit, machine.gpus.empty() ? fmt::format("--require gpu: {}; {}", machine.cuda_error, machine.cuda_advice)
                                                  : std::string{"--require gpu: no GPU is among --gpus"}};
  const std::set<std::string> here = possible_keys(machine, gpus);
  for (const std::string& key : hardware_)
    if (!here.contains(key))
      throw Error{Exit::unfit, fmt::format("--require {}: this machine is {}{}", key, fmt::join(here, ", "),
                                           machine.gpus.empty() ? "; " + machine.cuda_error : "")};
}

void Requirements::demand_no_pairs() const {
  if (pairs_ > 0)
    throw Error{Exit::usage, fmt::format("--require {}: no pair is run here; require gpu or a key of hardware as h200", pairs_)};
}

void Requirements::demand_met(const evidence::SuiteResult& suite, const evidence::Manifest& manifest) const {
  const auto any = [&](const auto& fits) {
    return std::ranges::any_of(suite.pairs, [&](const PairResult& result) { return ran(result) && fits(result); });
  };
  if (gpu_ && !any([](const PairResult& result) { return result.device == evidence::Device::gpu; }))
    throw Error{Exit::unfit, "--require gpu: no pair ran on a GPU; the lines above say why"};
  for (const std::string& key : hardware_)
    if (!any([&](const PairResult& result) { return evidence::hardware_key(result, manifest) == key; }))
      throw Error{Exit::unfit, fmt::format("--require {}: no pair ran on that hardware; the lines above say why", key)};
  std::set<std::string> pairs;
  for (const PairResult& result : suite.pairs)
    if (ran(result)) pairs.insert(result.target);
  if (pairs.size() < pairs_)
    throw Error{Exit::unfit, fmt::format("--require {}: {} ran", pairs_, base::plural(pairs.size(), "pair"))};
}

void demand_anything_ran(const evidence::SuiteResult& suite) {
  if (suite.pairs.empty() || std::ranges::any_of(suite.pairs, ran)) return;
  throw Error{Exit::nothing, fmt::format("nothing ran: {}; --allow-skipped makes that good",
                                         suite.pairs.size() == 1 ? "the pair was skipped"
                                                                 : fmt::format("all {} pairs were skipped", suite.pairs.size()))};
}

}  // namespace aisp::cli
