// SPDX-License-Identifier: Apache-2.0
// aisp as a library inside of another program: what needs a process of its own is still done by its executable.
#pragma once
#include <filesystem>
#include <string>

namespace aisp::base {

void embed(const std::filesystem::path& executable);
bool embedded();
// What is started for a process of its own: the running executable, or the one that embed() named.
std::string program();

}  // namespace aisp::base
