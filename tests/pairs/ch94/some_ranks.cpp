// SPDX-License-Identifier: Apache-2.0
// Two to four ranks, by the machine.
#include "../sum_of_ranks.hpp"

namespace aisp::ch94 {
namespace {

class SomeRanks final : public fixtures::SumOfRanks {
 public:
  using SumOfRanks::SumOfRanks;
};

}  // namespace

extern constinit const Pair some_ranks{fixtures::sum_of_ranks<SomeRanks>({2, 4})};

}  // namespace aisp::ch94
