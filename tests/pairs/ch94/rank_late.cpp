// SPDX-License-Identifier: Apache-2.0
// Rank 1 takes a second to begin.
#include "../sum_of_ranks.hpp"

namespace aisp::ch94 {
namespace {

class RankLate final : public fixtures::SumOfRanks {
 public:
  explicit RankLate(Setup& setup) : SumOfRanks{late(setup)} {}

 private:
  static Setup& late(Setup& setup) {
    if (setup.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds{1});
    return setup;
  }
};

}  // namespace

extern constinit const Pair rank_late{fixtures::sum_of_ranks<RankLate>({2, 2})};

}  // namespace aisp::ch94
