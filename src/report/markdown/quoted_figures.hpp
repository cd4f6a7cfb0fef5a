// SPDX-License-Identifier: Apache-2.0
// Figures in prose that come from recorded expectations. A comment right behind a figure says where it is from:
//   1.43x<!-- h200 ch10:wgmma_matmul wgmma speedup -->
// The hardware, the target, the variant (A/B: A over B, in the same rounds), and what of it: speedup; time, or time/N for that of
// one of N; floor (percent of it); bandwidth (the bytes that it declares, over its time); metric:NAME (what the pair reports).
// A comment may take two lines. One that begins with "answers" is a sentence's (scripts/check-lessons).
#pragma once
#include <string>
#include <vector>

#include "evidence/expectations/expectations.hpp"

namespace aisp::report {

// The page with every figure that such a comment follows as `all` has it; throws base::Error (usage) naming `place` and the
// comment where nothing is recorded of that name, or where no figure stands before it.
std::string with_quoted_figures(const std::string& page, const std::vector<evidence::Expectations>& all,
                                const std::string& place);

}  // namespace aisp::report
