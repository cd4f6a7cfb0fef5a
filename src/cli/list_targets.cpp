// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/list.hpp"
#include "cli/output.hpp"
#include "cli/suite_flags.hpp"
#include "evidence/json.hpp"
#include "pair/all_variants.hpp"
#include "run/blank.hpp"
#include "suite/select.hpp"

namespace aisp::cli {
namespace {

nlohmann::json names(const std::optional<Variants>& variants) {
  nlohmann::json list = nlohmann::json::array();
  if (variants)
    for (const Variant& variant : *variants) list.push_back(variant.name);
  return list;
}

nlohmann::json as_json(const pair::Entry& entry) {
  const Pair& pair = *entry.pair;
  const bool host = pair.device == Device::host;
  return {{"target", entry.target()},
          {"chapter", entry.chapter},
          {"name", entry.name},
          {"teaches", pair.teaches},
          {"device", run::to_string(pair.device)},
          {"gpus", host ? 0 : pair.needs.gpus},
          {"min_sm", host ? 0 : pair.needs.min_sm},
          {"bound", run::to_string(pair.bound)},
          {"baseline", pair.baseline.name},
          {"lesson", pair::lesson_of(pair)},
          {"optimized", names(pair.optimized)},
          {"controls", names(pair.controls)},
          {"libraries", names(pair.libraries)},
          {"sizes", sizes_json(pair)},
          {"sweep", cases_json(pair)},
          {"source", entry.source}};
}

}  // namespace

nlohmann::json sizes_json(const Pair& pair) {
  nlohmann::json list = nlohmann::json::array();
  for (const Size& size : pair.sizes)
    list.push_back({{"name", size.name},
                    {"full", size.full},
                    {"multiple", size.multiple},
                    {"least", least(size)},
                    {"most", size.most},
                    {"scales", size.scales}});
  return list;
}

nlohmann::json cases_json(const Pair& pair) {
  nlohmann::json list = nlohmann::json::array();
  for (const Case& each : pair.sweep) list.push_back({{"name", each.name}, {"sizes", each.sizes}});
  return list;
}

void print_targets(const std::vector<const pair::Entry*>& entries, const std::string& json) {
  if (!json.empty()) {
    nlohmann::json list = nlohmann::json::array();
    for (const pair::Entry* entry : entries) list.push_back(as_json(*entry));
    print_to(json, evidence::json_text(list, 2) + '\n');
  }
  if (json == "-") return;
  std::vector<std::vector<std::string>> rows;
  for (const pair::Entry* entry : entries) rows.push_back({entry->target(), std::string{entry->pair->teaches}});
  print(columns(rows));
}

void add_list_targets(CLI::App& app, Action& action) {
  struct Options {
    std::vector<std::string> chapters;
    std::vector<std::string> targets;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("list-targets", "list the pairs and what each teaches");
  command->add_option("--chapter", options->chapters, "of this chapter only, as in ch07; repeats")
      ->type_name("chNN")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("-t,--targets", options->targets, "of these targets only, as for aisp run")
      ->type_name("TARGET,...")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_flag("--json", options->json, "as a JSON array");
  command->callback([options, &action] {
    action = [options] {
      std::vector<std::string> targets = target_list(options->targets);
      targets.insert(targets.end(), options->chapters.begin(), options->chapters.end());
      print_targets(suite::select(pair::registry(), targets), options->json ? "-" : "");
      return base::Exit::good;
    };
  });
}

}  // namespace aisp::cli
