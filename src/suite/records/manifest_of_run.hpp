// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "evidence/manifest.hpp"
#include "suite/suite.hpp"

namespace aisp::suite {

evidence::ManifestGpu describe(const machine::Gpu& gpu);

// Returns a manifest without the run's name and start. `gpus`: ordinals of those the run may use.
evidence::Manifest make_manifest(const Task& task, const std::vector<int>& gpus);

}  // namespace aisp::suite
