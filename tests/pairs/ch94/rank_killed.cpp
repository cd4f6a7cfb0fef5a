// SPDX-License-Identifier: Apache-2.0
// Rank 1 is killed from outside in its fourth run.
#include <csignal>

#include "../sum_of_ranks.hpp"

namespace aisp::ch94 {
namespace {

class RankKilled final : public fixtures::SumOfRanks {
 public:
  using SumOfRanks::SumOfRanks;

 private:
  void misbehave(int run) override {
    if (is_bad() && run == 4) ::kill(::getpid(), SIGKILL);
  }
};

}  // namespace

extern constinit const Pair rank_killed{fixtures::sum_of_ranks<RankKilled>({2, 2})};

}  // namespace aisp::ch94
