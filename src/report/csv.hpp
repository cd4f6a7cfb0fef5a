// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "evidence/manifest.hpp"
#include "evidence/result.hpp"

namespace aisp::report {

// RFC 4180, one row a variant, or one without a variant for a pair that has none; the columns and their order are described in
// docs/report-formats.md and only ever grow at the end.
std::string suite_csv(const evidence::SuiteResult& suite, const evidence::Manifest& manifest);

}  // namespace aisp::report
