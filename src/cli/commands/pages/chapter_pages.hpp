// SPDX-License-Identifier: Apache-2.0
// aisp report --chapter-tables and --pictures: what the chapters' READMEs show of recorded expectations.
#pragma once
#include <string>

#include "base/error.hpp"

namespace aisp::cli {

struct ChapterPages {
  std::string chapters_dir = "chapters";
  std::string expectations_dir;
  bool tables = false;    // the measured tables, and figures in prose
  bool pictures = false;  // the SVG files that the READMEs link to
  bool check = false;     // change nothing, say what differs
};

// With `check`, Exit::failed where a page or a picture is not what was recorded; else Exit::usage where one cannot be made.
base::Exit write_chapter_pages(const ChapterPages& options);

}  // namespace aisp::cli
