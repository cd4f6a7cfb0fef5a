// SPDX-License-Identifier: Apache-2.0
// Rank 1 is stopped in its second run, and stays so.
#include <csignal>

#include "../sum_of_ranks.hpp"

namespace aisp::ch94 {
namespace {

class RankStopped final : public fixtures::SumOfRanks {
 public:
  using SumOfRanks::SumOfRanks;

 private:
  void misbehave(int run) override {
    if (is_bad() && run == 2) ::raise(SIGSTOP);
  }
};

}  // namespace

extern constinit const Pair rank_stopped{fixtures::sum_of_ranks<RankStopped>({3, 3})};

}  // namespace aisp::ch94
