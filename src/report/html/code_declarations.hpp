// SPDX-License-Identifier: Apache-2.0
// The places where a pair's files declare its variants. Private to report.
#pragma once
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "report/html/html.hpp"

namespace aisp::report {

using Names = std::set<std::string, std::less<>>;

// Names that lead to what a variant does: of its methods, and of what its declaration's arguments say. Its declaration stands in
// the pair's own file, which is the first, or in a header that pairs share. Nothing where no file declares it.
Names entry_points(const std::vector<SourceText>& files, const std::string& variant);

}  // namespace aisp::report
