// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace aisp::run {

// Before the first use of a library: those that choose between algorithms keep to the ones that give the same bits every time.
// A deterministic setting that the user has made stays.
void demand_deterministic_libraries();

}  // namespace aisp::run
