// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace aisp::base {

// 64 bits that nobody can foresee, from the system. Not std::random_device, which asks for glibc 2.36 where the standard library
// is linked statically; packages are to run on 2.34.
std::uint64_t entropy();

}  // namespace aisp::base
