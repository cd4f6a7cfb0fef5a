// SPDX-License-Identifier: Apache-2.0
// The ways in which a child ends, and their description in the result.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/system/process.hpp"
#include "evidence/result.hpp"
#include "run/wire/protocol.hpp"

namespace aisp::run {

enum class KilledFor {
  nothing,
  stage_limit,
  suite_deadline,
  interrupt,
  slow_exit,  // had sent its result, then did not end
  lost_rank,  // another rank had ended
  silence,    // closed its result pipe without a result and lived on
};

struct Ending {
  evidence::PairResult result;   // blank, with the pair's identity
  std::optional<Report> report;  // the last one that arrived
  std::vector<evidence::StageRecord> stages;
  base::ExitState exit;
  bool stopped = false;            // it stood still by a signal when it was killed
  bool stuck = false;              // killed, but has not exited
  bool killed_for_memory = false;  // the kernel killed a process of this machine for lack of memory meanwhile
  KilledFor killed_for = KilledFor::nothing;
  evidence::Stage late_stage = evidence::Stage::none;
  std::string variant;  // the variant that was running when the child ended; empty: none
  struct Rounds {
    int count = 0;
    double took_s = 0;
  };
  std::map<evidence::Stage, Rounds> rounds;
  double timeout_multiplier = 1;  // included in the limits
  double limit_s = 0;
  double grace_s = 0;  // extra time beyond the limit
  double elapsed_s = 0;
  bool pipe_closed = false;
  std::vector<base::Leftover> left_behind;
  std::size_t unreadable_lines = 0;
  std::string first_unreadable;
  std::vector<std::string> crash_places;  // noted by the child when it crashed
  std::string log_tail;
  std::string log_name;
  std::string log_trouble;
  std::size_t log_dropped_bytes = 0;
  double wall_s = 0;
};

evidence::PairResult describe(Ending ending);

}  // namespace aisp::run
