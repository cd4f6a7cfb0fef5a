// SPDX-License-Identifier: Apache-2.0
// TwoRanks ranks.
#include "../sum_of_ranks.hpp"

namespace aisp::ch94 {
namespace {

class TwoRanks final : public fixtures::SumOfRanks {
 public:
  using SumOfRanks::SumOfRanks;
};

}  // namespace

extern constinit const Pair two_ranks{fixtures::sum_of_ranks<TwoRanks>({2, 2})};

}  // namespace aisp::ch94
