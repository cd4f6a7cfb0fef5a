// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace aisp::run {

// The hidden command `aisp __execute REQUEST VARIANT`, what ncu and nsys are put around: sets the pair of a request (JSON) up,
// executes the variant once, as a sample is executed, between cudaProfilerStart and cudaProfilerStop. Returns the exit status.
int execute_main(const std::string& request, const std::string& variant);

}  // namespace aisp::run
