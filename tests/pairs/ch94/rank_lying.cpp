// SPDX-License-Identifier: Apache-2.0
// Rank 1 has a wrong result in every run.
#include "../sum_of_ranks.hpp"

namespace aisp::ch94 {
namespace {

class RankLying final : public fixtures::SumOfRanks {
 public:
  using SumOfRanks::SumOfRanks;

 private:
  float change(int run, int /*passes*/) override { return is_bad() && run > 0 ? 1.0f : 0.0f; }
};

}  // namespace

extern constinit const Pair rank_lying{fixtures::sum_of_ranks<RankLying>({3, 3})};

}  // namespace aisp::ch94
