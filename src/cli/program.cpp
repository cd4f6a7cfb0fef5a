// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/build_info.hpp"
#include "base/system/process.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "machine/doctor/tcgen05.hpp"
#include "machine/machine.hpp"
#include "machine/topology/topology.hpp"
#include "peak/obtain.hpp"
#include "run/child/child.hpp"
#include "run/wire/handshake.hpp"
#include "suite/selection.hpp"

namespace aisp::cli {
namespace {

using base::Error;
using base::Exit;

// The descriptor for the answer: a number after the command, or the one that base::Child gives its children.
int answer_descriptor(int argc, char** argv) {
  if (argc == 2) return base::Child::result_fd_in_child;
  char* end = nullptr;
  const long number = argc == 3 ? std::strtol(argv[2], &end, 10) : -1;
  if (number < 0 || number > 1 << 20 || *end != '\0' || ::fcntl(static_cast<int>(number), F_GETFD) < 0)
    throw Error{Exit::usage, fmt::format("{} is for aisp's own use", argv[1])};
  return static_cast<int>(number);
}

// A child whose parent was killed outright must not hold a GPU for ever.
void die_with_parent() { ::prctl(PR_SET_PDEATHSIG, SIGKILL); }

bool is_hidden_command(int argc, char** argv) { return argc > 1 && std::string_view{argv[1]}.starts_with("__"); }

bool asks_for_completions(int argc, char** argv) { return argc > 1 && std::string_view{argv[1]} == "__complete"; }

Exit run_hidden_command(int argc, char** argv) {
  const std::string_view name{argv[1]};
  if (name == "__execute" && argc == 4) {
    die_with_parent();
    return run::execute_main(argv[2], argv[3]) == 0 ? Exit::good : Exit::failed;
  }
  using Main = int (*)(int descriptor);
  static const std::map<std::string_view, Main> commands{{"__child", run::child_main},
                                                         {"__handshake", run::handshake_main},
                                                         {"__peak", peak::child_main},
                                                         {"__probe", machine::probe_main},
                                                         {"__probe_topology", machine::probe_topology_main},
                                                         {"__probe_tcgen05", machine::probe_tcgen05_main}};
  const auto command = commands.find(name);
  if (command == commands.end()) throw Error{Exit::usage, fmt::format("unknown command '{}'; see --help", name)};
  const int descriptor = answer_descriptor(argc, argv);
  die_with_parent();
  try {
    return command->second(descriptor) == 0 ? Exit::good : Exit::failed;
  } catch (const nlohmann::json::exception&) {
    throw Error{Exit::usage, fmt::format("{} is for aisp's own use: what it reads is no request of another aisp", name)};
  }
}

std::vector<std::string> words_of(int argc, char** argv) {
  std::vector<std::string> words{"aisp"};
  for (int i = 1; i < argc; ++i) words.emplace_back(argv[i]);
  return words;
}

std::string suggestion(const std::vector<std::string>& known, const std::string& word) {
  const std::vector<std::string> near = base::nearest(known, word, 1);
  return near.empty() ? std::string{"; see --help"} : fmt::format("; did you mean '{}'?", near.front());
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> flag_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

[[noreturn]] void reject_leftovers(const CLI::App& app, const std::string& first) {
  const auto chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen.front();
  const std::vector<std::string> rest = app.remaining(true);
  const std::string word = rest.empty() ? std::string{} : rest.front();
  if (command.get_name() != first && (chosen.empty() || word == first) && word.substr(0, 1) != "-")
    throw Error{Exit::usage, fmt::format("unknown command '{}'{}", word, suggestion(command_names(app), word))};
  const std::string name = word.substr(0, word.find('='));
  if (name.substr(0, 1) == "-")
    throw Error{Exit::usage, fmt::format("unknown flag '{}'{}", name, suggestion(flag_names(command), name))};
  throw Error{Exit::usage, fmt::format("unexpected argument '{}'; see aisp {} --help", word, command.get_name())};
}

// A variable that is not set must not pass for an option that was not given.
void reject_empty_words(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word{argv[i]};
    const bool without_value = word.starts_with("--") && word.find('=') == word.size() - 1;
    if (!word.empty() && !without_value) continue;
    throw Error{Exit::usage,
                fmt::format("there is an empty word behind '{}' (a variable that is not set?); give a value, or leave "
                            "the option out",
                            base::one_line(without_value ? word
                                           : i == 1      ? "aisp"
                                                         : argv[i - 1],
                                           100))};
  }
}

// CLI11's texts begin with the option's name or say what is missing, but for those of flags, "Could not convert: --list = x"; its
// own exit codes must not escape.
[[noreturn]] void reject(const CLI::ParseError& error) {
  constexpr std::string_view of_flag = "Could not convert: ", between = " = ";
  const std::string line = base::one_line(error.what());
  const std::size_t end = line.find(between);
  if (!line.starts_with(of_flag) || end == std::string::npos) throw Error{Exit::usage, line};
  throw Error{Exit::usage, fmt::format("{} '{}' must be true or false", line.substr(of_flag.size(), end - of_flag.size()),
                                       line.substr(end + between.size()))};
}

// The text of `aisp --version`: version, commit, CUDA, architectures.
std::string version_text() {
  const base::BuildInfo& build = base::build_info();
  const std::string part = suite::built_part();
  return fmt::format("aisp {}\ncommit        {}{}\nCUDA          {}\narchitectures {}\ncompiler      {}, {}\n{}", build.version,
                     build.git_commit.empty() ? "unknown" : build.git_commit, build.git_dirty ? ", with local changes" : "",
                     build.cuda_compiler, build.cuda_architectures, build.cxx_compiler, build.build_type,
                     part.empty() ? "" : fmt::format("pairs         {}\n", part));
}

}  // namespace

Exit run_program(int argc, char** argv) {
  // Turns a silent death at the file size limit into an error like that of a full disk.
  ::signal(SIGXFSZ, SIG_IGN);
  const bool completes = asks_for_completions(argc, argv);
  if (is_hidden_command(argc, argv) && !completes) return run_hidden_command(argc, argv);
  // A reader that goes away (aisp ... | head) must end in an error that is reported, not in a silent death.
  ::signal(SIGPIPE, SIG_IGN);
  if (!completes) reject_empty_words(argc, argv);

  Action action;
  const std::vector<std::string> command_line = words_of(argc, argv);
  CLI::App app{"Measures and verifies pairs of baseline and optimized kernels", "aisp"};
  // So that a script's flags can be overridden at its end; options that collect their values say so.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  bool show_version = false;
  app.add_flag("--version", show_version, "version, commit, CUDA version and architectures");
  app.require_subcommand(0, 1);
  app.footer(
      "Exit status: 0 good, 1 a pair was wrong, crashed or timed out, 2 usage, 3 regression, 4 environment unfit,\n"
      "5 nothing selected, nothing of it built or run, or nothing to compare, 130 interrupted.\n"
      "aisp COMMAND --help explains a command.");
  add_run(app, action, command_line);
  add_list_targets(app, action);
  add_verify(app, action, command_line);
  add_analyze(app, action);
  add_compare(app, action);
  add_merge(app, action, command_line);
  add_doctor(app, action);
  add_report(app, action);
  add_roofline(app, action);
  add_selftest(app, action);
  add_peak(app, action);
  add_clean(app, action);
  add_specs(app, action);
  add_estimate(app, action);
  add_explain(app, action);
  add_new(app, action);
  add_completion(app, action);
  if (completes) {
    print(completions(app, {argv + 2, argv + argc}));
    return Exit::good;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app.get_subcommands();
    show_help(chosen.empty() ? app.help() : chosen.front()->help("aisp"));
    return Exit::good;
  } catch (const CLI::ExtrasError&) {
    reject_leftovers(app, command_line.at(1));
  } catch (const CLI::ParseError& error) {
    reject(error);
  }
  if (show_version) {
    show(version_text());
    return Exit::good;
  }
  if (!action) throw Error{Exit::usage, "no command; aisp --help lists them"};
  return action();
}

}  // namespace aisp::cli
