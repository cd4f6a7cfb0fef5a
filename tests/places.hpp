// SPDX-License-Identifier: Apache-2.0
// The places of the source tree's files and the executables for tests. Only places.cpp is compiled with these paths, so that a
// compiler cache can give what was compiled in one clone to another.
#pragma once
#include <filesystem>
#include <string>

namespace aisp {

std::filesystem::path source_folder();
// The executable that tests start. AISP_PATH says where it lies when tests run on another machine than they were built on.
std::string aisp_path();
std::string fixtures_path();

}  // namespace aisp
