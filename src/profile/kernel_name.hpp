// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace aisp::profile {

// As written in C++, with namespaces and parameters; what is not mangled stays as it is.
std::string demangled(const std::string& symbol);

// Returns the part of a name that readers look for: "tiled<float, 64>" of "void aisp::ch07::(anonymous namespace)::tiled<float,
// 64>(float const*, float*)".
std::string short_name(const std::string& demangled_name);

}  // namespace aisp::profile
