// SPDX-License-Identifier: Apache-2.0
// The workload of a declared pair: every method is a call into the program that declared it.
#pragma once
#include <aisp/pair.hpp>

#include <deque>
#include <string>
#include <vector>

#include "foreign/calls.hpp"
#include "foreign/declaration.hpp"
#include "pair/session.hpp"

namespace aisp::foreign {

// State for the workload's factory, a plain function: there is one pair at a time, with a declaration for each of its points.
struct Present {
  const std::deque<Declaration>* points = nullptr;
  const aisp_calls* calls = nullptr;
};
extern Present present;

Workload* make_workload(Setup& setup);
// The functions of the variant with this number, counted from the baseline on.
inline constexpr int most_variants = 1 + 3 * static_cast<int>(Variants::capacity);
Method run_of(int variant);
Method prepare_of(int variant);

}  // namespace aisp::foreign
