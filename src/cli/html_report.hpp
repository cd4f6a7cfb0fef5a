// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "base/error.hpp"

namespace aisp::cli {

// Writes the run as one HTML file: `file`, or report.html in the run's folder when it is empty.
base::Exit write_html_report(const std::string& artifacts, const std::string& run, const std::string& file);

}  // namespace aisp::cli
