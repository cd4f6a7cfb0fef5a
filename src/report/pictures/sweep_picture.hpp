// SPDX-License-Identifier: Apache-2.0
// A sweep as curves and as a short table.
#pragma once
#include <string>
#include <vector>

#include "evidence/recorded/recorded.hpp"
#include "report/numbers.hpp"
#include "report/pictures/line_picture.hpp"

namespace aisp::report {

enum class SweepQuantity { time, rate, speedup };

// One line a variant over the size that the points change, with what the machine allows beside times and rates; a chart for each
// curve of a family, and one of points by name where they form no curve. None where nothing was timed or the quantity is not
// declared.
std::vector<LineChart> sweep_charts(const evidence::Sweep& sweep, SweepQuantity quantity);
// All of them below each other: rate, or time where no rate is declared; or the speedup.
std::string sweep_svg(const evidence::Sweep& sweep, SweepQuantity quantity, double width);

// A row for each point: its sizes, or its name where the points form no curve, the time of each variant, the lesson's speedup and
// its share of what the machine allows. Headings first.
Rows sweep_summary(const evidence::Sweep& sweep);

}  // namespace aisp::report
