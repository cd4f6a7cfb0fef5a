// SPDX-License-Identifier: Apache-2.0
#include "verify/leaks.hpp"

#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <vector>

namespace aisp::verify {
namespace {

class Nothing final : public Workload {
 public:
  explicit Nothing(Setup& setup) : y_{setup.output<float>(1)} {}
  Cost cost() const override { return {}; }
  double expected(std::size_t) const override { return 0; }
  void run(Launch&) { y_[0] = 0; }

 private:
  Output<float> y_;
};

constexpr Pair nothing{.teaches = "test",
                       .make = make<Nothing>,
                       .baseline = {.name = "nothing", .run = call<&Nothing::run>},
                       .optimized = variants({{.name = "again", .run = call<&Nothing::run>}}),
                       .device = Device::host};

constexpr int rounds = 12, runs_a_round = 2;
constexpr std::size_t block_bytes = 4 << 20;

// Returns the report on rounds in which `allocates(round)` blocks are allocated and kept, so many of them by the harness.
std::string of_rounds(const std::function<int(int)>& allocates, int by_harness = 0) {
  pair::Session session{nothing, {}};
  const LeakWatch::OwnBytes unknown;
  LeakWatch leaks{session, unknown};
  std::vector<std::unique_ptr<char[]>> kept;
  leaks.before();
  for (int round = 0; round < rounds; ++round) {
    for (int i = 0; i < allocates(round); ++i) kept.push_back(std::make_unique<char[]>(block_bytes));
    for (int i = 0; i < by_harness; ++i) leaks.harness_keeps(block_bytes);
    leaks.round_ended();
  }
  leaks.after();
  return leaks.text_of_each(rounds * runs_a_round);
}

TEST(LeaksOfRounds, ABlockOfEachRoundIsSeen) {
  EXPECT_THAT(of_rounds([](int) { return 1; }), testing::HasSubstr("each run leaves 209"));  // 2 MiB and a header's part
}

TEST(LeaksOfRounds, WhatTheHarnessKeepsIsNoLeakAndHidesNone) {
  EXPECT_EQ(of_rounds([](int) { return 1; }, 1), "");
  EXPECT_THAT(of_rounds([](int) { return 2; }, 1), testing::HasSubstr("each run leaves 209"));
}

// CUPTI and the harness's samples make one allocation for many rounds.
TEST(LeaksOfRounds, BlocksOfAFewRoundsAreTheHarnesss) {
  EXPECT_EQ(of_rounds([](int round) { return round % 5 == 3 ? 4 : 0; }), "");
}

}  // namespace
}  // namespace aisp::verify
