// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace aisp::base {

// Student's t that 2.5 % of the distribution lie above: what a 95 % interval from a few values is made with. Degrees of freedom
// need not be whole.
double student_t_975(double degrees);

}  // namespace aisp::base
