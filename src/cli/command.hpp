// SPDX-License-Identifier: Apache-2.0
// One file a command; each adds itself to the application and says what runs when it was chosen.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace CLI {
class App;
}

namespace aisp::cli {

using Action = std::function<base::Exit()>;

void add_run(CLI::App& app, Action& action, const std::vector<std::string>& command_line);
void add_list_targets(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action, const std::vector<std::string>& command_line);
void add_merge(CLI::App& app, Action& action, const std::vector<std::string>& command_line);
void add_doctor(CLI::App& app, Action& action);
void add_report(CLI::App& app, Action& action);
void add_roofline(CLI::App& app, Action& action);
void add_selftest(CLI::App& app, Action& action);
void add_peak(CLI::App& app, Action& action);
void add_clean(CLI::App& app, Action& action);
void add_specs(CLI::App& app, Action& action);
void add_estimate(CLI::App& app, Action& action);
void add_analyze(CLI::App& app, Action& action);
void add_compare(CLI::App& app, Action& action);
void add_explain(CLI::App& app, Action& action);
void add_new(CLI::App& app, Action& action);
void add_completion(CLI::App& app, Action& action);

// Returns what may stand in place of the last of `words`, which follow "aisp" in a command line, one candidate a line, with a tab
// and its description where it has one. A last line ":files" says that files may stand there too.
std::string completions(const CLI::App& app, const std::vector<std::string>& words);

// Everything but catching: parses, runs the command, gives the exit status. Throws base::Error for what the user should read.
base::Exit run_program(int argc, char** argv);

}  // namespace aisp::cli
