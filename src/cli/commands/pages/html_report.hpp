// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "base/error.hpp"

namespace aisp::cli {

struct HtmlOptions {
  std::string artifacts_dir, run;
  std::string file;     // empty: report.html in the run's folder
  std::string against;  // another run; empty: none
  bool history = false;
  bool is_public = false;
  bool is_brief = false;
};

// Writes the run as one HTML file.
base::Exit write_html_report(const HtmlOptions& options);

}  // namespace aisp::cli
