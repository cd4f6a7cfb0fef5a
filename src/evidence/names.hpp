// SPDX-License-Identifier: Apache-2.0
// Names that files may give to chapters, pairs, variants and cases: none that a shell, a path, a terminal or a log could take for
// more.
#pragma once
#include <string_view>

namespace aisp::evidence {

bool is_plain(std::string_view name);     // lower case, digits, underscores, 128 of them at most
bool is_target(std::string_view target);  // ch07:transpose

}  // namespace aisp::evidence
