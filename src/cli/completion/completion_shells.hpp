// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace aisp::cli {

std::vector<const CLI::App*> commands_of(const CLI::App& app);

// The scripts that teach a shell all commands, options and values of `app`.
std::string bash_script(const CLI::App& app);
std::string zsh_script(const CLI::App& app);
std::string fish_script(const CLI::App& app);

}  // namespace aisp::cli
