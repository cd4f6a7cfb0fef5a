// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "machine/doctor/doctor.hpp"

namespace aisp::machine {

using Findings = std::vector<Finding>;

void examine_gpu(const Gpu& gpu, const Surroundings& surroundings, Findings& findings);
void examine_host(const Machine& machine, const Surroundings& surroundings, Findings& findings);

}  // namespace aisp::machine
