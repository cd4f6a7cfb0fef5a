// SPDX-License-Identifier: Apache-2.0
// Text for terminals.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "base/system/terminal.hpp"
#include "evidence/manifest.hpp"
#include "evidence/result.hpp"

namespace aisp::report {

// Columns of the next two, in which the lines of a run agree: as wide as the longest name where a run's pairs are known.
struct LineWidths {
  std::size_t target = 27, variant = 19;
};

// One pair on one line, without the newline: target, the variant that is its lesson, speedup with its interval, times of the
// baseline and of the variant, verdict, percent of the ceiling; or status and reason.
std::string pair_line(const evidence::PairResult& result, const base::Painter& paint, const LineWidths& widths = {});
// Returns what was asked for besides times: a line a variant for energy and for tokens, each with its line end; often nothing.
std::string pair_details(const evidence::PairResult& result, const LineWidths& widths = {});
// Lists what was asked for and could not be had, as in "no counters: the driver lets only root read them (ch07:transpose and 3
// more)": one line each, however many pairs lack it.
std::vector<std::string> not_available(const evidence::SuiteResult& suite);
// The last lines of a run: counts, best and worst speedup, what to do about failures. Ends with a newline.
std::string summary(const evidence::SuiteResult& suite, const evidence::Manifest& manifest, const base::Painter& paint);

}  // namespace aisp::report
