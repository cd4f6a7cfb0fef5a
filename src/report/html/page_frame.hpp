// SPDX-License-Identifier: Apache-2.0
// The files of src/report/html/page, which the build embeds. Private to report.
#pragma once
#include <map>
#include <string>
#include <string_view>

namespace aisp::report {

extern const char* const page_frame;
extern const char* const page_style;
extern const char* const page_script;

// `text` with each {{name}} replaced by the value of that name, which is put in as it is.
std::string filled(std::string_view text, const std::map<std::string, std::string, std::less<>>& values);

}  // namespace aisp::report
