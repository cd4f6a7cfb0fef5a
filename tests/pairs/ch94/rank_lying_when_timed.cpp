// SPDX-License-Identifier: Apache-2.0
// Rank 1 has wrong results of the lesson after more executions than verification and warm-up have.
#include "../sum_of_ranks.hpp"

namespace aisp::ch94 {
namespace {

class RankLyingWhenTimed final : public fixtures::SumOfRanks {
 public:
  using SumOfRanks::SumOfRanks;

 private:
  float change(int run, int passes) override { return is_bad() && passes == 1 && run > 24 ? 1.0f : 0.0f; }
};

}  // namespace

extern constinit const Pair rank_lying_when_timed{fixtures::sum_of_ranks<RankLyingWhenTimed>({2, 2})};

}  // namespace aisp::ch94
