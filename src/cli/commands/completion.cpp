// SPDX-License-Identifier: Apache-2.0
// Scripts for completion, and the man page, which is made from the commands as they are.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/build_info.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/completion.hpp"
#include "cli/output.hpp"

namespace aisp::cli {
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
