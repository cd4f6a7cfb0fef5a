// SPDX-License-Identifier: Apache-2.0
// Rank 1 throws in its second run.
#include <stdexcept>

#include "../sum_of_ranks.hpp"

namespace aisp::ch94 {
namespace {

class RankThrown final : public fixtures::SumOfRanks {
 public:
  using SumOfRanks::SumOfRanks;

 private:
  void misbehave(int run) override {
    if (is_bad() && run == 2) throw std::runtime_error{"the link is down"};
  }
};

}  // namespace

extern constinit const Pair rank_thrown{fixtures::sum_of_ranks<RankThrown>({3, 3})};

}  // namespace aisp::ch94
