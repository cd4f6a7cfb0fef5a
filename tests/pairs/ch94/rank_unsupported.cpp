// SPDX-License-Identifier: Apache-2.0
// Rank 1 lacks something.
#include "../sum_of_ranks.hpp"

namespace aisp::ch94 {
namespace {

class RankUnsupported final : public fixtures::SumOfRanks {
 public:
  explicit RankUnsupported(Setup& setup) : SumOfRanks{able(setup)} {}

 private:
  static Setup& able(Setup& setup) {
    if (setup.rank() == 1) throw Unsupported{"this rank lacks a fast link"};
    return setup;
  }
};

}  // namespace

extern constinit const Pair rank_unsupported{fixtures::sum_of_ranks<RankUnsupported>({3, 3})};

}  // namespace aisp::ch94
