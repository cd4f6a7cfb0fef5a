// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "evidence/manifest.hpp"
#include "evidence/result.hpp"

namespace aisp::report {

std::string suite_markdown(const evidence::SuiteResult& suite, const evidence::Manifest& manifest);
std::string pair_markdown(const evidence::PairResult& pair);

}  // namespace aisp::report
