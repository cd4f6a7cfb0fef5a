// SPDX-License-Identifier: Apache-2.0
// Rank 1 is slow in every run, without work.
#include "../sum_of_ranks.hpp"

namespace aisp::ch94 {
namespace {

class RankSlow final : public fixtures::SumOfRanks {
 public:
  using SumOfRanks::SumOfRanks;

 private:
  void misbehave(int run) override {
    if (is_bad() && run > 0) std::this_thread::sleep_for(std::chrono::milliseconds{3});
  }
};

}  // namespace

extern constinit const Pair rank_slow{fixtures::sum_of_ranks<RankSlow>({2, 2})};

}  // namespace aisp::ch94
