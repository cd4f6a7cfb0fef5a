// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace aisp::base {

// Student's t that 2.5 % and 0.5 % of the distribution lie above: what 95 % and 99 % intervals from a few values are made with.
// Degrees of freedom need not be whole.
double student_t_975(double degrees);
double student_t_995(double degrees);

}  // namespace aisp::base
