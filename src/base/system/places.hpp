// SPDX-License-Identifier: Apache-2.0
// The places of aisp's own files: its executable, the files installed with it, its cache.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

namespace aisp::base {

// As a library inside of another program: what needs a process of its own is still done by this executable.
void embed(const std::filesystem::path& executable);
bool embedded();
// The program to start for a separate process: the running executable, or the one that embed() named.
std::string program();

// The folder of the files that aisp reads at run time (share/aisp), found from the place of `executable`, so that an installed
// tree can be moved; empty where none lies beside it, as in a build folder.
std::filesystem::path installed_data(const std::filesystem::path& executable);

// How to call one of the scripts that come with aisp: its place in the source tree, or where it was installed.
std::string script(std::string_view name);

// The folder for what can be found out again but costs time: XDG_CACHE_HOME/aisp or HOME/.cache/aisp; empty when neither is set.
std::filesystem::path cache_folder();
// The files that src/peak/record.cpp and src/compile/store.cpp keep below it, as a regular expression: `aisp clean` removes them
// and nothing else, because that place may hold anything, as a clone called aisp.
inline constexpr const char* cached_files = "peak/(levels-|links-)?(gpu|host)-[0-9a-f]{16}\\.json|kernels/[0-9a-f]{64}\\.code";

}  // namespace aisp::base
