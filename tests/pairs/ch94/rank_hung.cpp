// SPDX-License-Identifier: Apache-2.0
// Rank 1 never ends its second run.
#include "../sum_of_ranks.hpp"

namespace aisp::ch94 {
namespace {

class RankHung final : public fixtures::SumOfRanks {
 public:
  using SumOfRanks::SumOfRanks;

 private:
  void misbehave(int run) override {
    if (is_bad() && run == 2)
      for (;;) ::pause();
  }
};

}  // namespace

extern constinit const Pair rank_hung{fixtures::sum_of_ranks<RankHung>({2, 2})};

}  // namespace aisp::ch94
