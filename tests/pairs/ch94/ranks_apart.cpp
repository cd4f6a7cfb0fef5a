// SPDX-License-Identifier: Apache-2.0
// Rank 1 exchanges once less than the others.
#include "../sum_of_ranks.hpp"

namespace aisp::ch94 {
namespace {

class RanksApart final : public fixtures::SumOfRanks {
 public:
  explicit RanksApart(Setup& setup) : SumOfRanks{setup} {
    if (is_bad()) return;
    std::vector<int> all(static_cast<std::size_t>(setup.ranks()));
    setup.exchange(1, all.data());
  }
};

}  // namespace

extern constinit const Pair ranks_apart{fixtures::sum_of_ranks<RanksApart>({2, 2})};

}  // namespace aisp::ch94
