// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace aisp::cli {

bool takes_value(const CLI::Option& option);
std::vector<const CLI::App*> commands_of(const CLI::App& app);

// Returns what may stand in place of the last of `words`, which follow "aisp" in a command line, one candidate a line, with a tab
// and its description where it has one. A last line ":files" says that files may stand there too.
std::string completions(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace aisp::cli
