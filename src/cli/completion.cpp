// SPDX-License-Identifier: Apache-2.0
// Completion and the man page, made from the commands as they are, so that neither can say what is not.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/build_info.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"

namespace aisp::cli {
namespace {

using base::Error;
using base::Exit;

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  std::vector<const CLI::App*> commands;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) commands.push_back(command);
  return commands;
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    for (const std::string& name : option->get_snames()) flags.push_back("-" + name);
  }
  return flags;
}

// In single quotes of a shell, where nothing but the quote itself means anything.
std::string in_quotes(const std::string& text) {
  std::string result;
  for (const char c : text)
    if (c == '\'') result += "'\\''";
    else result += c;
  return "'" + result + "'";
}

std::string names_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(app)) names.push_back(command->get_name());
  return base::join(names, " ");
}

constexpr const char* bash_end = R"sh(  case $previous in
    -t | --targets)
      # A target holds a colon, at which readline cuts words.
      local typed=${COMP_LINE:0:COMP_POINT} begin
      typed=${typed##*[ ,]}
      begin=${typed%"${typed##*:}"}
      mapfile -t COMPREPLY < <(compgen -W "all $("${COMP_WORDS[0]}" list-targets 2>/dev/null | cut -d' ' -f1)" -- "$typed")
      COMPREPLY=("${COMPREPLY[@]#"$begin"}")
      return
      ;;
    --chapter) words=$("${COMP_WORDS[0]}" list-targets 2>/dev/null | cut -d: -f1 | sort -u) ;;
    --color) words='auto always never' ;;
    --mode) words='events kernel do_bench timer' ;;
  esac
  if [[ $current == -* || -z $command || $previous == --chapter || $previous == --color || $previous == --mode ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
  else
    compopt -o default 2>/dev/null
    COMPREPLY=()
  fi
}
complete -F _aisp aisp
)sh";

std::string bash_script(const CLI::App& app) {
  std::string cases;
  for (const CLI::App* command : commands_of(app))
    cases += fmt::format("    {}) words='{}' ;;\n", command->get_name(), base::join(flags_of(*command), " "));
  return fmt::format(R"sh(# bash completion for aisp, from `aisp completion bash`
_aisp() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} command= words
  if [[ $current == : ]]; then current=; fi
  local at=$COMP_CWORD
  while [[ $at -gt 1 && (${{COMP_WORDS[at]}} == : || ${{COMP_WORDS[at - 1]}} == :) ]]; do at=$((at - 1)); done
  if [[ $at -gt 0 ]]; then previous=${{COMP_WORDS[at - 1]}}; fi
  if [[ $COMP_CWORD -gt 1 ]]; then command=${{COMP_WORDS[1]}}; fi
  case $command in
{}    *) words='{} {}' ;;
  esac
)sh",
                     cases, names_of(app), base::join(flags_of(app), " ")) +
         bash_end;
}

std::string zsh_option(const CLI::Option& option) {
  std::string lines;
  for (const std::string& flag : [&] {
         std::vector<std::string> names;
         for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
         for (const std::string& name : option.get_snames()) names.push_back("-" + name);
         return names;
       }()) {
    std::string help;
    for (const char c : option.get_description()) {
      if (c == '[' || c == ']' || c == ':' || c == '\\') help += '\\';
      help += c;
    }
    const bool targets = option.check_lname("targets");
    lines += "      " +
             in_quotes(fmt::format("*{}[{}]{}", flag, help,
                                   !takes_value(option) ? ""
                                   : targets            ? ":target:_aisp_targets"
                                                        : fmt::format(":{}:_files", option.get_type_name()))) +
             " \\\n";
  }
  return lines;
}

std::string zsh_script(const CLI::App& app) {
  std::string names, cases;
  for (const CLI::App* command : commands_of(app)) {
    names += fmt::format("    {}\n", in_quotes(command->get_name() + ":" + command->get_description()));
    cases += fmt::format("    {})\n      _arguments \\\n", command->get_name());
    for (const CLI::Option* option : command->get_options())
      if (!option->get_positional()) cases += zsh_option(*option);
    cases += "      '*:file:_files'\n      ;;\n";
  }
  return fmt::format(R"sh(#compdef aisp
# zsh completion for aisp, from `aisp completion zsh`
_aisp_targets() {{
  local -a targets
  targets=(all ${{(f)"$(aisp list-targets 2>/dev/null | cut -d' ' -f1)"}})
  compadd -a targets
}}
_aisp() {{
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
                     names, cases);
}

std::string fish_script(const CLI::App& app) {
  std::string script = "# fish completion for aisp, from `aisp completion fish`\n";
  for (const CLI::App* command : commands_of(app)) {
    const std::string name = command->get_name();
    script +=
        fmt::format("complete -c aisp -n __fish_use_subcommand -f -a {} -d {}\n", name, in_quotes(command->get_description()));
    for (const CLI::Option* option : command->get_options()) {
      if (option->get_positional()) continue;
      script += fmt::format("complete -c aisp -n '__fish_seen_subcommand_from {}'", name);
      for (const std::string& flag : option->get_lnames()) script += " -l " + flag;
      for (const std::string& flag : option->get_snames()) script += " -s " + flag;
      if (option->check_lname("targets")) script += " -x -a '(aisp list-targets 2>/dev/null | string replace -r \" .*\" \"\")'";
      else if (takes_value(*option)) script += " -r";
      script += fmt::format(" -d {}\n", in_quotes(option->get_description()));
    }
  }
  return script;
}

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
    const std::string value = takes_value(*option) ? " \\fI" + roff(option->get_type_name()) + "\\fR" : "";
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
  if (shell == "bash") print(bash_script(app));
  else if (shell == "zsh") print(zsh_script(app));
  else if (shell == "fish") print(fish_script(app));
  else if (shell == "man") print(man_page(app));
  else throw Error{Exit::usage, fmt::format("completion '{}': must be bash, zsh, fish or man", base::one_line(shell, 40))};
  return Exit::good;
}

}  // namespace

void add_completion(CLI::App& app, Action& action) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completion", "prints completion for a shell, or the man page");
  command->add_option("SHELL", *shell, "bash, zsh, fish or man")->required();
  command->footer(
      "For this shell only: source <(aisp completion bash). For good: aisp completion bash > "
      "~/.local/share/bash-completion/completions/aisp");
  command->callback([shell, &app, &action] { action = [shell, &app] { return complete(app, *shell); }; });
}

}  // namespace aisp::cli
