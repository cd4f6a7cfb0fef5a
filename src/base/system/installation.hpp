// SPDX-License-Identifier: Apache-2.0
// What was installed together with this executable.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

namespace aisp::base {

// The folder of the files that aisp reads at run time (share/aisp), found from the place of `executable`, so that an installed
// tree can be moved; empty where none lies beside it, as in a build folder.
std::filesystem::path installed_data(const std::filesystem::path& executable);

// How to call one of the scripts that come with aisp: its place in the source tree, or where it was installed.
std::string script(std::string_view name);

}  // namespace aisp::base
