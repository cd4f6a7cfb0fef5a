// SPDX-License-Identifier: Apache-2.0
// Candidates for completion, the shells' scripts that ask for them, and the man page, which is made from the commands as they
// are.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "base/build_info.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/glossary.hpp"
#include "cli/output.hpp"
#include "evidence/expectations/analysis.hpp"
#include "evidence/results_log.hpp"
#include "knowledge/estimate.hpp"
#include "knowledge/model.hpp"
#include "machine/gpu_specs.hpp"
#include "pair/registry.hpp"
#include "run/wire/request.hpp"

namespace aisp::cli {
namespace {

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  return {commands.begin(), commands.end()};
}

using Words = std::vector<std::string>;

// Values of an option, or a command's arguments.
struct Values {
  Words words;
  bool several = false;  // with commas between them
  bool files = false;
};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

template <class List, class Name>
Words names_of_all(const List& list, const Name& name) {
  Words words;
  for (const auto& each : list) words.emplace_back(name(each));
  return words;
}

Words chapters() {
  Words words = names_of_all(pair::registry(), [](const pair::Entry& entry) { return entry.chapter; });
  words.erase(std::unique(words.begin(), words.end()), words.end());
  return words;
}

Words targets() {
  return with(chapters(), names_of_all(pair::registry(), [](const pair::Entry& entry) { return entry.target(); }));
}

// Leaves out a folder whose name --run-id refuses, because shells put words into the command line without quotes.
Values runs() {
  Values values{.words = {"latest"}, .files = true};
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator{"artifacts", ignored}) {
    const std::string name = entry.path().filename().string();
    const bool plain =
        std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-'; });
    if (plain && name.front() != '.' && name.front() != '-' && exists(entry.path() / evidence::results_log_file, ignored))
      values.words.push_back(name);
  }
  std::ranges::sort(values.words);
  return values;
}

Words modes() {
  return names_of_all(base::all_words<run::TimingMode>(), [](std::string_view word) { return word; });
}
Words profiles() {
  return names_of_all(std::array{run::ProfileLevel::none, run::ProfileLevel::minimal, run::ProfileLevel::full},
                      [](run::ProfileLevel level) { return to_string(level); });
}
Words findings() {
  return names_of_all(base::all_words<evidence::Finding>(), [](std::string_view word) { return word; });
}
Words gpus() {
  return names_of_all(machine::all_specs(), [](const machine::GpuSpec* spec) { return spec->key; });
}
Words models() {
  return names_of_all(knowledge::known_models(), [](const knowledge::Model& model) { return model.name; });
}
Words precisions() {
  return names_of_all(knowledge::all_precisions(), [](machine::NumberType type) { return name_of(type); });
}

// Shells cut words at blanks.
Words glossary_words() {
  Words words = names_of_all(glossary(), [](const Term& term) { return term.name; });
  std::erase_if(words, [](const std::string& word) { return word.find(' ') != std::string::npos; });
  return words;
}

Values values_of(const std::string& command, const CLI::Option& option) {
  // By command and option, or by the option alone.
  static const std::map<std::pair<std::string, std::string>, Values (*)()> special{
      {{"", "targets"}, [] { return Values{.words = with({"all"}, targets()), .several = true}; }},
      {{"", "chapter"}, [] { return Values{chapters()}; }},
      {{"", "resume"}, runs},
      {{"", "color"},
       [] {
         return Values{{"auto", "always", "never"}};
       }},
      {{"", "mode"}, [] { return Values{modes()}; }},
      {{"", "profile"}, [] { return Values{profiles()}; }},
      {{"analyze", "only"}, [] { return Values{findings()}; }},
      {{"estimate", "model"}, [] { return Values{models()}; }},
      {{"estimate", "gpu"}, [] { return Values{gpus()}; }},
      {{"estimate", "dtype"}, [] { return Values{precisions()}; }},
      {{"estimate", "kv-dtype"}, [] { return Values{precisions()}; }}};
  for (const std::string& name : option.get_lnames())
    for (const std::string& place : {command, std::string{}})
      if (const auto found = special.find({place, name}); found != special.end()) return found->second();
  const std::string type = option.get_type_name();
  return {.words = {}, .files = type.find("FILE") != std::string::npos || type == "DIR"};
}

Values arguments_of(const std::string& command) {
  if (command == "analyze" || command == "compare" || command == "report" || command == "roofline") return runs();
  if (command == "run" || command == "verify" || command == "list-targets")
    return {.words = with({"all"}, targets()), .several = true};
  if (command == "explain") return {with(targets(), glossary_words())};
  if (command == "specs") return {gpus()};
  if (command == "completion") return {{"bash", "zsh", "fish", "man"}};
  return {};
}

const CLI::Option* option_called(const CLI::App& command, const std::string& flag) {
  for (const CLI::Option* option : command.get_options())
    if (!option->get_positional() && option->check_name(flag)) return option;
  return nullptr;
}

// Candidates that begin as the word does, each once.
class Candidates {
 public:
  explicit Candidates(std::string typed) : typed_{std::move(typed)} {}

  void add(const std::string& word, const std::string& description) {
    if (word.starts_with(typed_)) found_.emplace_back(word, description);
  }
  void add_flags(const CLI::App& app) {
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& name : option->get_lnames()) add("--" + name, option->get_description());
      for (const std::string& name : option->get_snames()) add("-" + name, option->get_description());
    }
  }
  // `before` is the part of the word that stands before the value.
  void add_values(std::string before, const Values& values) {
    if (const std::size_t comma = typed_.rfind(','); values.several && comma != std::string::npos)
      before = typed_.substr(0, comma + 1);
    for (const std::string& word : values.words) add(before + word, {});
    files_ = values.files;
  }
  std::string text() const {
    std::string text;
    for (const auto& [word, description] : found_) text += word + (description.empty() ? "" : '\t' + description) + '\n';
    return text + (files_ ? ":files\n" : "");
  }

 private:
  std::string typed_;
  std::vector<std::pair<std::string, std::string>> found_;
  bool files_ = false;
};

}  // namespace

std::string completions(const CLI::App& app, const std::vector<std::string>& words) {
  if (words.empty()) return {};
  const std::string& word = words.back();
  Candidates candidates{word};
  if (words.size() == 1) {
    for (const CLI::App* command : commands_of(app)) candidates.add(command->get_name(), command->get_description());
    candidates.add_flags(app);
    return candidates.text();
  }
  const auto commands = commands_of(app);
  const auto found = std::ranges::find(commands, words.front(), &CLI::App::get_name);
  if (found == commands.end()) return {};
  const CLI::App* command = *found;
  const std::size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
  const CLI::Option* option =
      option_called(*command, equals != std::string::npos ? word.substr(0, equals) : words[words.size() - 2]);
  if (option != nullptr && takes_value(*option))
    candidates.add_values(equals != std::string::npos ? word.substr(0, equals + 1) : "", values_of(words.front(), *option));
  else if (word.starts_with('-')) candidates.add_flags(*command);
  else candidates.add_values("", arguments_of(words.front()));
  return candidates.text();
}

namespace {

using base::Error;
using base::Exit;

// Each script asks `aisp __complete` for candidates, so that it knows what its aisp knows.
constexpr const char* bash_script = R"sh(# bash completion for aisp, from `aisp completion bash`
_aisp() {
  local line=${COMP_LINE:0:COMP_POINT} current=${COMP_WORDS[COMP_CWORD]} words answer begin
  read -ra words <<< "$line"
  if [[ $line == *[[:blank:]] ]]; then words+=(""); fi
  # readline cuts words at colons, which targets hold, and at equals signs, and replaces only what follows the last of them.
  if [[ $current == : || $current == "=" ]]; then current=; fi
  begin=${words[-1]%"$current"}
  COMPREPLY=()
  while IFS= read -r answer; do
    if [[ $answer == :files ]]; then
      compopt -o default 2>/dev/null
    else
      answer=${answer%%$'\t'*}
      COMPREPLY+=("${answer#"$begin"}")
    fi
  done < <("${words[0]}" __complete "${words[@]:1}" 2>/dev/null)
}
complete -F _aisp aisp
)sh";

constexpr const char* zsh_script = R"sh(#compdef aisp
# zsh completion for aisp, from `aisp completion zsh`
_aisp() {
  local -a candidates
  local line files
  for line in "${(@f)$("${(Q)words[1]}" __complete "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}"; do
    if [[ $line == :files ]]; then
      files=yes
    elif [[ -n $line ]]; then
      line=${line//:/\\:}
      candidates+=(${line/$'\t'/:})
    fi
  done
  _describe -V 'aisp' candidates
  if [[ -n $files ]]; then
    compset -P '--*='
    _files
  fi
}
if [[ $funcstack[1] == _aisp ]]; then _aisp "$@"; else compdef _aisp aisp; fi
)sh";

constexpr const char* fish_script = R"sh(# fish completion for aisp, from `aisp completion fish`
function __aisp_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for line in ($words[1] __complete $words[2..-1] "$current" 2>/dev/null)
        if test $line = :files
            __fish_complete_path "$current"
        else
            echo $line
        end
    end
end
complete -c aisp -f -a '(__aisp_complete)'
)sh";

// A line of running text: a backslash, a hyphen and a dot or quote at its beginning mean something to troff.
std::string roff(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (result.empty() || result.back() == '\n')) result += "\\&";
    if (c == '\\') result += "\\e";
    else if (c == '-') result += "\\-";
    else result += c;
  }
  return result;
}

std::string man_options(const CLI::App& app) {
  std::string page;
  for (const CLI::Option* option : app.get_options()) {
    const std::string type = takes_value(*option) ? option->get_type_name() : "";
    const std::string value = type.empty() ? "" : " \\fI" + roff(type) + "\\fR";
    page += fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", roff(option->get_name(false, true)), value, roff(option->get_description()));
  }
  return page;
}

std::string man_page(const CLI::App& app) {
  std::string page = fmt::format(
      ".TH AISP 1 \"\" \"aisp {}\" \"User Commands\"\n.SH NAME\naisp \\- {}\n.SH SYNOPSIS\n.B aisp\n[\\-\\-version] "
      "\\fICOMMAND\\fR "
      "[options]\n.SH OPTIONS\n{}",
      roff(std::string{base::build_info().version}), roff(app.get_description()), man_options(app));
  page += ".SH COMMANDS\n";
  for (const CLI::App* command : commands_of(app))
    page +=
        fmt::format(".SS aisp {}\n{}\n{}{}", roff(command->get_name()), roff(command->get_description()), man_options(*command),
                    command->get_footer() == app.get_footer() || command->get_footer().empty()
                        ? ""
                        : ".PP\n" + roff(command->get_footer()) + "\n");
  return page + ".SH EXIT STATUS\n" + roff(app.get_footer()) + "\n";
}

Exit complete(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") print(bash_script);
  else if (shell == "zsh") print(zsh_script);
  else if (shell == "fish") print(fish_script);
  else if (shell == "man") print(man_page(app));
  else throw Error{Exit::usage, fmt::format("completion '{}': must be bash, zsh, fish or man", base::one_line(shell, 40))};
  return Exit::good;
}

}  // namespace

void add_completion(CLI::App& app, Action& action) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completion", "print completion for a shell, or the man page");
  command->add_option("SHELL", *shell, "bash, zsh, fish or man")->type_name("")->required();
  command->footer(
      "For this shell only: source <(aisp completion bash). For good: aisp completion bash > "
      "~/.local/share/bash-completion/completions/aisp");
  command->callback([shell, &app, &action] { action = [shell, &app] { return complete(app, *shell); }; });
}

}  // namespace aisp::cli
