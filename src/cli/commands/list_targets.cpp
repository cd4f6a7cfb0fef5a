// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/flags.hpp"
#include "cli/output.hpp"
#include "cli/suite_flags.hpp"
#include "evidence/json.hpp"
#include "pair/all_variants.hpp"
#include "pair/code.hpp"
#include "run/wire/blank.hpp"
#include "suite/selection.hpp"

namespace aisp::cli {
namespace {

nlohmann::json names(const std::optional<Variants>& variants) {
  nlohmann::json list = nlohmann::json::array();
  if (variants)
    for (const Variant& variant : *variants) list.push_back(variant.name);
  return list;
}

std::vector<std::string> not_run(const Pair& pair) {
  std::vector<std::string> list;
  for (const Variant* variant : pair::all_variants(pair))
    if (variant->not_run) list.emplace_back(variant->name);
  return list;
}

nlohmann::json gains_over(const Pair& pair) {
  nlohmann::json over = nlohmann::json::object();
  std::string_view before = pair.baseline.name;
  for (const Variant& step : pair.optimized) {
    over[std::string{step.name}] = step.gains_over.empty() ? before : step.gains_over;
    before = step.name;
  }
  return over;
}

std::vector<std::string> changing_precision(const Pair& pair) {
  std::vector<std::string> list;
  for (const Variant* variant : pair::all_variants(pair))
    if (variant->changes_precision) list.emplace_back(variant->name);
  return list;
}

std::vector<std::string> source_digests(const pair::Entry& entry) {
  std::vector<std::string> list;
  for (const pair::CodeDigest& code : pair::code_of(entry).digests) list.emplace_back(code.digest);
  return list;
}

std::string line_of(const Pair& pair) {
  const std::vector<std::string> untried = not_run(pair);
  return std::string{pair.teaches} + (untried.empty() ? "" : " (not run: " + base::join(untried, ", ") + ")");
}

nlohmann::json as_json(const pair::Entry& entry) {
  const Pair& pair = *entry.pair;
  const bool host = pair.device == Device::host;
  return {{"target", entry.target()},
          {"chapter", entry.chapter},
          {"name", entry.name},
          {"built", true},
          {"teaches", pair.teaches},
          {"device", to_string(run::recorded(pair.device))},
          {"gpus", host ? 0 : pair.needs.gpus},
          {"min_sm", host ? 0 : pair.needs.min_sm},
          {"max_sm", host ? 0 : pair.needs.max_sm},
          {"bound", to_string(run::recorded(pair.bound))},
          {"baseline", pair.baseline.name},
          {"lesson", pair::lesson_of(pair)},
          {"optimized", names(pair.optimized)},
          {"gains_over", gains_over(pair)},
          {"controls", names(pair.controls)},
          {"libraries", names(pair.libraries)},
          {"changes_precision", changing_precision(pair)},
          {"not_run", not_run(pair)},
          {"sizes", sizes_json(pair)},
          {"sweep", cases_json(pair.sweep)},
          {"source", entry.source},
          {"source_digests", source_digests(entry)}};
}

nlohmann::json as_json(const pair::NotBuilt& pair) {
  return {{"target", pair.target()},
          {"chapter", pair.chapter},
          {"name", pair.name},
          {"built", false},
          {"build_with", suite::build_command({pair.target()})},
          {"source", pair.source}};
}

}  // namespace

nlohmann::json sizes_json(const Pair& pair) {
  nlohmann::json list = nlohmann::json::array();
  for (const Size& size : pair.sizes)
    list.push_back({{"name", size.name},
                    {"full", size.full},
                    {"multiple", size.multiple},
                    {"least", least_value(size)},
                    {"most", size.most},
                    {"scales", size.scales}});
  return list;
}

nlohmann::json cases_json(const Cases& cases) {
  nlohmann::json list = nlohmann::json::array();
  for (const Case& each : cases) list.push_back({{"name", each.name}, {"sizes", each.sizes}});
  return list;
}

void print_targets(const suite::Selection& selection, const std::string& json) {
  struct Row {
    nlohmann::json json;
    std::vector<std::string> text;
  };
  std::map<std::pair<std::string_view, std::string_view>, Row> rows;  // by chapter and name
  for (const pair::Entry* entry : selection.built)
    rows[{entry->chapter, entry->name}] = {as_json(*entry), {entry->target(), line_of(*entry->pair)}};
  for (const pair::NotBuilt* pair : selection.not_built)
    rows[{pair->chapter, pair->name}] = {as_json(*pair), {pair->target(), suite::not_built_reason({pair->target()})}};
  if (!json.empty()) {
    nlohmann::json list = nlohmann::json::array();
    for (auto& [name, row] : rows) list.push_back(std::move(row.json));
    print_to(json, evidence::json_text(list, 2) + '\n');
  }
  if (json == "-") return;
  std::vector<std::vector<std::string>> lines;
  for (auto& [name, row] : rows) lines.push_back(std::move(row.text));
  show(columns(lines));
}

void add_list_targets(CLI::App& app, Action& action) {
  struct ListTargetsOptions : TargetFlags {
    std::vector<std::string> chapters;
    bool json = false;
  };
  auto options = std::make_shared<ListTargetsOptions>();
  CLI::App* command = app.add_subcommand("list-targets", "list the pairs and what each teaches");
  add_target_flags(*command, *options);
  add_repeated(*command, "--chapter", options->chapters, "chNN", "of this chapter only, as in ch07; repeats");
  command->add_flag("--json", options->json, "as a JSON array");
  command->callback([options, &action] {
    action = [options] {
      std::vector<std::string> targets = target_list(*options);
      targets.insert(targets.end(), options->chapters.begin(), options->chapters.end());
      print_targets(suite::select_here(targets), options->json ? "-" : "");
      return base::Exit::good;
    };
  });
}

}  // namespace aisp::cli
