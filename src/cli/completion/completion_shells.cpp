// SPDX-License-Identifier: Apache-2.0
#include "cli/completion/completion_shells.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/text.hpp"
#include "cli/completion/completion_values.hpp"

namespace aisp::cli {
namespace {

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  return names;
}

std::string flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options())
    for (std::string& name : names_of(*option)) flags.push_back(std::move(name));
  return base::join(flags, " ");
}

std::string joined_command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(app)) names.push_back(command->get_name());
  return base::join(names, " ");
}

// In single quotes of a shell, where nothing but the quote itself means anything.
std::string in_quotes(const std::string& text) {
  std::string result;
  for (const char c : text)
    if (c == '\'') result += "'\\''";
    else result += c;
  return "'" + result + "'";
}

std::string_view name_of(Offer offer) {
  switch (offer) {
    case Offer::words: return "words";
    case Offer::targets: return "targets";
    case Offer::chapters: return "chapters";
    case Offer::runs: return "runs";
    case Offer::files: return "files";
    case Offer::nothing: break;
  }
  return "nothing";
}

constexpr const char* bash_begin = R"sh(# bash completion for aisp, from `aisp completion bash`
_aisp_targets() { "${COMP_WORDS[0]}" list-targets 2>/dev/null | cut -d' ' -f1; }
_aisp_chapters() { _aisp_targets | cut -d: -f1 | sort -u; }
# A folder whose name --run-id refuses is not offered: readline puts words into the command line without quotes.
_aisp_runs() {
  local run
  for run in artifacts/*/results.jsonl; do
    run=${run%/*} run=${run##*/}
    if [[ $run == [[:alnum:]_]* && $run != *[^[:alnum:]._-]* ]]; then echo "$run"; fi
  done
}
# Adds the words of the standard input that begin with $1, as they are: compgen -W expands its words, and so runs what is in them.
_aisp_offer() {
  local word
  while read -r word; do
    if [[ -n $word && $word == "$1"* ]]; then COMPREPLY+=("$word"); fi
  done
}
_aisp() {
  local current=${COMP_WORDS[COMP_CWORD]} at=$COMP_CWORD previous command='' flags offer='' words='' argument argument_words
  # readline cuts words at colons, which targets hold, and at equals signs.
  while [[ $at -gt 1 && (${COMP_WORDS[at]} == : || ${COMP_WORDS[at - 1]} == :) ]]; do at=$((at - 1)); done
  if [[ $current == : || $current == "=" ]]; then current=; fi
  if [[ $at -gt 0 && ${COMP_WORDS[at]} != "=" ]]; then at=$((at - 1)); fi
  if [[ $at -gt 1 && ${COMP_WORDS[at]} == "=" ]]; then at=$((at - 1)); fi
  previous=${COMP_WORDS[at]}
  if [[ $COMP_CWORD -gt 1 ]]; then command=${COMP_WORDS[1]}; fi
  case $command in
)sh";

constexpr const char* bash_end = R"sh(  esac
  if [[ -z $offer && ($current == -* || -z $command) ]]; then offer=words words=$flags; fi
  if [[ -z $offer ]]; then offer=$argument words=$argument_words; fi
  COMPREPLY=()
  case $offer in
    targets)
      # What is typed of this target; readline's own word begins behind the last colon, maybe in an earlier target of the list.
      local typed=${COMP_LINE:0:COMP_POINT} begin
      typed=${typed##*[ ,=]}
      begin=${typed%"${typed##*:}"}
      _aisp_offer "$typed" < <(tr ' ' '\n' <<< "$words"; _aisp_targets; _aisp_chapters)
      COMPREPLY=("${COMPREPLY[@]#"$begin"}")
      COMPREPLY=("${COMPREPLY[@]/#/"${current%"${typed##*:}"}"}")
      return
      ;;
    chapters) _aisp_offer "$current" < <(_aisp_chapters) ;;
    runs)
      _aisp_offer "$current" < <(_aisp_runs)
      compopt -o default 2>/dev/null
      ;;
    files) compopt -o default 2>/dev/null ;;
  esac
  _aisp_offer "$current" < <(tr ' ' '\n' <<< "$words")
}
complete -F _aisp aisp
)sh";

// The cases of a command's options that take a value.
std::string bash_values(const CLI::App& command) {
  std::string cases;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional() || !takes_value(*option)) continue;
    const Values values = values_of(command, *option);
    cases += fmt::format("    {}:{}) offer={} words='{}' ;;\n", command.get_name(),
                         base::join(names_of(*option), fmt::format(" | {}:", command.get_name())), name_of(values.offer),
                         base::join(values.words, " "));
  }
  return cases;
}

std::string zsh_action(const Values& values) {
  switch (values.offer) {
    case Offer::words: return fmt::format("({})", base::join(values.words, " "));
    case Offer::targets: return fmt::format("_aisp_targets {}", base::join(values.words, " "));
    case Offer::chapters: return "_aisp_chapters";
    case Offer::runs: return "_aisp_runs";
    case Offer::files: return "_files";
    case Offer::nothing: break;
  }
  return " ";
}

std::string zsh_option(const CLI::App& command, const CLI::Option& option) {
  std::string help;
  for (const char c : option.get_description()) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') help += '\\';
    help += c;
  }
  std::string lines;
  for (const std::string& flag : names_of(option)) {
    std::string line = fmt::format("*{}[{}]", flag, help);
    if (takes_value(option)) {
      // --flag=VALUE and -fVALUE too.
      const char* joined = flag.starts_with("--") ? "=" : "+";
      line = fmt::format("*{}{}[{}]:{}:{}", flag, joined, help, option.get_type_name(), zsh_action(values_of(command, option)));
    }
    lines += "      " + in_quotes(line) + " \\\n";
  }
  return lines;
}

constexpr const char* zsh_functions = R"sh(_aisp_targets() {
  local -a targets
  targets=("$@" ${(f)"$(aisp list-targets 2>/dev/null | cut -d' ' -f1)"})
  compset -P '*,'
  compadd -a targets
}
_aisp_chapters() {
  local -a chapters
  chapters=(${(fu)"$(aisp list-targets 2>/dev/null | cut -d: -f1)"})
  compadd -a chapters
}
_aisp_runs() {
  local -a runs
  runs=(latest artifacts/*/results.jsonl(N:h:t))
  compadd -a runs
  _files -/
}
)sh";

constexpr const char* fish_functions = R"sh(function __aisp_chapters
    aisp list-targets 2>/dev/null | string replace -r ':.*' '' | sort -u
end
function __aisp_targets
    string join \n $argv (__aisp_chapters) (aisp list-targets 2>/dev/null | string replace -r ' .*' '')
end
function __aisp_runs
    for log in artifacts/*/results.jsonl
        string replace -r '.*/(.*)/results.jsonl' '$1' $log
    end
end
)sh";

std::string fish_action(const Values& values) {
  const std::string words = base::join(values.words, " ");
  switch (values.offer) {
    case Offer::words: return fmt::format(" -x -a '{}'", words);
    case Offer::targets: return fmt::format(" -x -a '(__fish_complete_list , \"__aisp_targets {}\")'", words);
    case Offer::chapters: return " -x -a '(__aisp_chapters)'";
    case Offer::runs: return fmt::format(" -r -a '{} (__aisp_runs)'", words);
    case Offer::files: return " -r";
    case Offer::nothing: break;
  }
  return " -x";
}

}  // namespace

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  std::vector<const CLI::App*> commands;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) commands.push_back(command);
  return commands;
}

std::string bash_script(const CLI::App& app) {
  std::string cases, values;
  for (const CLI::App* command : commands_of(app)) {
    const Values arguments = arguments_of(*command);
    cases += fmt::format("    {}) flags='{}' argument={} argument_words='{}' ;;\n", command->get_name(), flags_of(*command),
                         name_of(arguments.offer), base::join(arguments.words, " "));
    values += bash_values(*command);
  }
  return fmt::format("{}{}    *) flags='{} {}' ;;\n  esac\n  case $command:$previous in\n{}{}", bash_begin, cases,
                     joined_command_names(app), flags_of(app), values, bash_end);
}

std::string zsh_script(const CLI::App& app) {
  std::string names, cases;
  for (const CLI::App* command : commands_of(app)) {
    names += fmt::format("    {}\n", in_quotes(command->get_name() + ":" + command->get_description()));
    cases += fmt::format("    {})\n      _arguments \\\n", command->get_name());
    for (const CLI::Option* option : command->get_options())
      if (!option->get_positional()) cases += zsh_option(*command, *option);
    cases += fmt::format("      {}\n      ;;\n", in_quotes("*:argument:" + zsh_action(arguments_of(*command))));
  }
  return fmt::format(R"sh(#compdef aisp
# zsh completion for aisp, from `aisp completion zsh`
{}_aisp() {{
  local -a commands
  commands=(
{}  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{}  esac
}}
if [[ $funcstack[1] == _aisp ]]; then _aisp "$@"; else compdef _aisp aisp; fi
)sh",
                     zsh_functions, names, cases);
}

std::string fish_script(const CLI::App& app) {
  std::string script = fmt::format("# fish completion for aisp, from `aisp completion fish`\n{}", fish_functions);
  for (const CLI::App* command : commands_of(app)) {
    const std::string name = command->get_name();
    script +=
        fmt::format("complete -c aisp -n __fish_use_subcommand -f -a {} -d {}\n", name, in_quotes(command->get_description()));
    const std::string in_command = fmt::format("complete -c aisp -n '__fish_seen_subcommand_from {}'", name);
    const Values arguments = arguments_of(*command);
    if (arguments.offer == Offer::nothing) script += in_command + " -f\n";
    else script += fmt::format("{}{}\n", in_command, fish_action(arguments));
    for (const CLI::Option* option : command->get_options()) {
      if (option->get_positional()) continue;
      script += in_command;
      for (const std::string& flag : option->get_lnames()) script += " -l " + flag;
      for (const std::string& flag : option->get_snames()) script += " -s " + flag;
      if (takes_value(*option)) script += fish_action(values_of(*command, *option));
      script += fmt::format(" -d {}\n", in_quotes(option->get_description()));
    }
  }
  return script;
}

}  // namespace aisp::cli
