// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/library.hpp>

#include <string>
#include <vector>

namespace aisp::machine {

// Returns the file that would be opened, without opening it (opening cuBLAS can take seconds); empty when it is absent.
std::string locate(Library library) noexcept;

// Returns the names that a library may be installed by, best first: {"libcublas.so.13", "libcublas.so.12"}.
std::vector<std::string> file_names(Library library);

// Returns the folders to search after the loader's own places, in order. AISP_LIBRARY_PATH comes before the loader's.
std::vector<std::string> library_folders();

}  // namespace aisp::machine
