// SPDX-License-Identifier: Apache-2.0
#include "cli/suite_flags.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/text.hpp"
#include "cli/flags.hpp"
#include "cli/output.hpp"
#include "cli/requirements.hpp"
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

}  // namespace aisp::cli
