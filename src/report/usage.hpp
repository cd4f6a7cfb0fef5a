// SPDX-License-Identifier: Apache-2.0
// Figures of variants as text and tables, the same in every report.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "evidence/result.hpp"

namespace aisp::report {

std::string joules_text(double joules);                         // "0.211 J", "35.2 mJ", "8.1 uJ"
std::string energy_ratio_text(const evidence::Energy& energy);  // "2.91x [2.90, 2.93]"; "-" for the baseline

using Rows = std::vector<std::vector<std::string>>;
// Headings first; nothing but them where no variant has such a result. `group`: of evidence::quantities().
Rows quantity_rows(const evidence::PairResult& pair, std::string_view group);
Rows kernel_rows(const evidence::PairResult& pair);

}  // namespace aisp::report
