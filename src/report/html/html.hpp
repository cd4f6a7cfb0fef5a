// SPDX-License-Identifier: Apache-2.0
// A run as one HTML file that needs nothing else: no network, no fonts, no scripts but its own few lines.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "evidence/comparison/history.hpp"
#include "evidence/run_record.hpp"
#include "report/pictures/roofline.hpp"

namespace aisp::report {

// A function with the comment above it.
struct CodePart {
  std::string name, path;
  int line = 0, lines = 0;  // the first and how many
  bool is_kernel = false;   // __global__
  bool operator==(const CodePart& other) const { return path == other.path && line == other.line; }
};

struct PaneSource {
  std::string path;  // chapters/ch07/transpose.cu
  std::string text;
  std::vector<CodePart> functions;
};

// A pair's code: its files, the pair's own first, or why they cannot be shown.
struct PairSource {
  std::vector<PaneSource> files;
  std::map<std::string, std::string> variants;  // by name a '1' for each function of the files that it consists of, and '0's
  std::string missing;

  // Adds a file with the lines about its functions that the build wrote (cmake/code/variant_code.py).
  void add(PaneSource file, const std::string& functions);
};

struct HtmlReport {
  evidence::RunRecord run;
  std::vector<Roofline> rooflines;  // one a chapter and kind of hardware
  std::optional<evidence::RunRecord> against;
  std::vector<evidence::Series> history;      // empty: not asked for
  bool is_public = false;                     // the run is a public_copy(), and the page says so
  bool is_brief = false;                      // no samples, pictures of pairs, rooflines and source: small enough for mail
  std::map<std::string, PairSource> sources;  // by target
  // NVML's bits in words; empty for those that slow nothing down.
  std::function<std::string(std::uint64_t)> throttle_text;
};

std::string html_report(const HtmlReport& report);

}  // namespace aisp::report
