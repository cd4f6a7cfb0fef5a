// SPDX-License-Identifier: Apache-2.0
// Rank 1 crashes in its second run.
#include <cstdlib>

#include "../sum_of_ranks.hpp"

namespace aisp::ch94 {
namespace {

class RankCrashed final : public fixtures::SumOfRanks {
 public:
  using SumOfRanks::SumOfRanks;

 private:
  void misbehave(int run) override {
    if (is_bad() && run == 2) std::abort();
  }
};

}  // namespace

extern constinit const Pair rank_crashed{fixtures::sum_of_ranks<RankCrashed>({3, 3})};

}  // namespace aisp::ch94
