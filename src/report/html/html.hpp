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

struct SourceText {
  std::string path;  // chapters/ch07/transpose.cu
  std::string text;
};

// A pair's code: its files, the pair's own first, or why they cannot be shown.
struct PairSource {
  std::vector<SourceText> files;
  std::string missing;
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
