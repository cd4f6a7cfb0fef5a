// SPDX-License-Identifier: Apache-2.0
// EightRanks ranks.
#include "../sum_of_ranks.hpp"

namespace aisp::ch94 {
namespace {

class EightRanks final : public fixtures::SumOfRanks {
 public:
  using SumOfRanks::SumOfRanks;
};

}  // namespace

extern constinit const Pair eight_ranks{fixtures::sum_of_ranks<EightRanks>({8, 8})};

}  // namespace aisp::ch94
