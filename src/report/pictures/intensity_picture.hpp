// SPDX-License-Identifier: Apache-2.0
// How much math each pair does for a byte of memory, beside where the machine's ridges lie. Private to report.
#pragma once
#include <string>

#include "report/pictures/roofline.hpp"

namespace aisp::report {

// A row for each pair that the roofline draws, in the order of their intensity, with a dot for each of its intensities; alone in
// a file.
std::string intensity_svg(const Roofline& roofline);

}  // namespace aisp::report
