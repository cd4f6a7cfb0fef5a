// SPDX-License-Identifier: Apache-2.0
// Versions of libraries without opening them: that can take seconds, and the parent must not.
#pragma once
#include <filesystem>
#include <string>

namespace aisp::machine {

// "13.1.0.3" of a library's file: from the name of the file that its links lead to (libcublas.so.13.1.0.3), else from the wheel
// that it came with (nvidia_cublas-13.1.0.3.dist-info, whose RECORD lists it). Empty where neither tells.
std::string library_version(const std::filesystem::path& file);

}  // namespace aisp::machine
