// SPDX-License-Identifier: Apache-2.0
// One run beside another, as times and as shares of what each machine gives. Private to report.
#pragma once
#include <string>

#include "evidence/run_record.hpp"
#include "report/pictures/bar_picture.hpp"
#include "report/usage.hpp"

namespace aisp::report {

struct Machines {
  std::string summary;
  BarChart speed;       // times of the other run over those of this one
  BarChart normalised;  // shares of the lower bound, this run's over the other's
  Rows rows;            // headings first
};

// The headline() of each pair of `run`, with the same variant of `other`.
Machines compare_machines(const evidence::RunRecord& run, const evidence::RunRecord& other);

}  // namespace aisp::report
