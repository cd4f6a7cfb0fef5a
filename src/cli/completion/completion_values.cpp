// SPDX-License-Identifier: Apache-2.0
#include "cli/completion/completion_values.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <utility>

#include "cli/glossary.hpp"
#include "evidence/expectations/analysis.hpp"
#include "knowledge/estimate.hpp"
#include "knowledge/model.hpp"
#include "machine/gpu_specs.hpp"
#include "run/wire/request.hpp"

namespace aisp::cli {
namespace {

using Words = std::vector<std::string>;

Words modes() {
  constexpr auto words = base::all_words<run::TimingMode>();
  return {words.begin(), words.end()};
}

Words profiles() {
  Words words;
  for (const auto level : {run::ProfileLevel::none, run::ProfileLevel::minimal, run::ProfileLevel::full})
    words.emplace_back(run::to_string(level));
  return words;
}

Words gpus() {
  Words words;
  for (const machine::GpuSpec* spec : machine::all_specs()) words.emplace_back(spec->key);
  return words;
}

Words models() {
  Words words;
  for (const knowledge::Model& model : knowledge::known_models()) words.emplace_back(model.name);
  return words;
}

Words precisions() {
  Words words;
  for (const machine::NumberType type : knowledge::all_precisions()) words.emplace_back(name_of(type));
  return words;
}

Words findings() {
  Words words;
  for (const evidence::Finding finding : evidence::all_findings()) words.emplace_back(to_string(finding));
  return words;
}

// Shells cut words at blanks.
Words glossary_words() {
  Words words;
  for (const Term& term : glossary())
    if (term.name.find(' ') == std::string_view::npos) words.emplace_back(term.name);
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  return words;
}

// By command and option, or by the option alone.
const std::map<std::pair<std::string, std::string>, Values>& special() {
  static const std::map<std::pair<std::string, std::string>, Values> all{
      {{"", "targets"}, {Offer::targets, {"all"}}},
      {{"", "chapter"}, {Offer::chapters, {}}},
      {{"", "resume"}, {Offer::runs, {"latest"}}},
      {{"", "color"}, {Offer::words, {"auto", "always", "never"}}},
      {{"", "mode"}, {Offer::words, modes()}},
      {{"", "profile"}, {Offer::words, profiles()}},
      {{"analyze", "only"}, {Offer::words, findings()}},
      {{"estimate", "model"}, {Offer::words, models()}},
      {{"estimate", "gpu"}, {Offer::words, gpus()}},
      {{"estimate", "dtype"}, {Offer::words, precisions()}},
      {{"estimate", "kv-dtype"}, {Offer::words, precisions()}}};
  return all;
}

}  // namespace

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

Values values_of(const CLI::App& command, const CLI::Option& option) {
  for (const std::string& name : option.get_lnames())
    for (const std::string& place : {command.get_name(), std::string{}})
      if (const auto found = special().find({place, name}); found != special().end()) return found->second;
  const std::string type = option.get_type_name();
  const bool file = type.find("FILE") != std::string::npos || type == "DIR";
  return {file ? Offer::files : Offer::nothing, {}};
}

Values arguments_of(const CLI::App& command) {
  const std::string& name = command.get_name();
  if (name == "analyze" || name == "compare" || name == "report" || name == "roofline") return {Offer::runs, {"latest"}};
  if (name == "run" || name == "verify" || name == "list-targets") return {Offer::targets, {"all"}};
  if (name == "explain") return {Offer::targets, glossary_words()};
  if (name == "specs") return {Offer::words, gpus()};
  if (name == "completion") return {Offer::words, {"bash", "zsh", "fish", "man"}};
  return {};
}

}  // namespace aisp::cli
