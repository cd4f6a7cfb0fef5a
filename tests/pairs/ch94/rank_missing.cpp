// SPDX-License-Identifier: Apache-2.0
// A rank never comes: rank 1 hangs in its constructor.
#include "../sum_of_ranks.hpp"

namespace aisp::ch94 {
namespace {

class RankMissing final : public fixtures::SumOfRanks {
 public:
  explicit RankMissing(Setup& setup) : SumOfRanks{setup} {
    while (is_bad()) ::pause();
  }
};

}  // namespace

extern constinit const Pair rank_missing{fixtures::sum_of_ranks<RankMissing>({3, 3})};

}  // namespace aisp::ch94
