// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>

#include "evidence/manifest.hpp"
#include "evidence/result.hpp"
#include "evidence/run_record.hpp"

namespace aisp::cli {

// Records what a run measured below `folder`, and says on stderr what of it was not fit to be expected and why.
void record_expectations(const evidence::SuiteResult& suite, const evidence::Manifest& manifest, const std::string& folder);
// The same of several runs, one after the other.
void record_expectations(std::span<const evidence::RunRecord> runs, const std::string& folder);

}  // namespace aisp::cli
