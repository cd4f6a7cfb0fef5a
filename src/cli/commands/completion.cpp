// SPDX-License-Identifier: Apache-2.0
// Completion and the man page, made from the commands as they are, so that neither can say what is not.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/build_info.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/completion/completion_shells.hpp"
#include "cli/completion/completion_values.hpp"
#include "cli/output.hpp"

namespace aisp::cli {
namespace {

using base::Error;
using base::Exit;

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
  CLI::App* command = app.add_subcommand("completion", "print completion for a shell, or the man page");
  command->add_option("SHELL", *shell, "bash, zsh, fish or man")->type_name("")->required();
  command->footer(
      "For this shell only: source <(aisp completion bash). For good: aisp completion bash > "
      "~/.local/share/bash-completion/completions/aisp");
  command->callback([shell, &app, &action] { action = [shell, &app] { return complete(app, *shell); }; });
}

}  // namespace aisp::cli
