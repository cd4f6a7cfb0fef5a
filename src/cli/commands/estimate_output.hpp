// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "knowledge/estimate.hpp"

namespace aisp::cli {

std::string estimate_text(const knowledge::Question& question, const knowledge::Estimate& estimate);
std::string estimate_json(const knowledge::Question& question, const knowledge::Estimate& estimate);

std::string ranking_text(const knowledge::Question& question, const std::vector<knowledge::Candidate>& ranked);
std::string ranking_json(const knowledge::Question& question, const std::vector<knowledge::Candidate>& ranked);

}  // namespace aisp::cli
