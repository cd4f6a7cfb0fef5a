// SPDX-License-Identifier: Apache-2.0
// The times by which a host variant that remembers its results is told from one whose inputs are in caches.
#include "run/child/audit/known_inputs.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace aisp::run {
namespace {

TEST(KnownInputs, AVariantThatIsFasterOnceItHasMetThemMayRemember) {
  const auto samples = [](double new_ms, double known_ms) {
    std::vector<measure::Sample> all(8);
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].again_on_inputs = i % 4 != 0;
      all[i].raw_ms = all[i].again_on_inputs ? known_ms : new_ms;
    }
    return all;
  };
  EXPECT_TRUE(may_remember(samples(1, 0.5)));
  EXPECT_FALSE(may_remember(samples(1, 0.9)));
  EXPECT_FALSE(may_remember(samples(0.02, 0.005))) << "too short to tell";
  EXPECT_FALSE(may_remember({})) << "nothing was timed";
}

TEST(KnownInputs, NearlyEverySecondExecutionMustBeFaster) {
  Repeats remembers{std::vector<double>(15, 1.0), std::vector<double>(15, 0.5)};
  EXPECT_TRUE(remembers.tell());
  for (int i = 0; i < 3; ++i) remembers.known_ms[static_cast<std::size_t>(i)] = 3;
  EXPECT_TRUE(remembers.tell()) << "other programs cost it caches three times";
  remembers.known_ms[3] = 3;
  EXPECT_FALSE(remembers.tell());
  EXPECT_FALSE((Repeats{std::vector<double>(15, 1.0), std::vector<double>(15, 0.9)}.tell()));
  // The data decide, in both executions alike.
  Repeats depends_on_data;
  for (int i = 0; i < 15; ++i)
    for (std::vector<double>* times : {&depends_on_data.new_ms, &depends_on_data.known_ms}) times->push_back(i % 2 == 0 ? 1 : 10);
  EXPECT_FALSE(depends_on_data.tell());
}

}  // namespace
}  // namespace aisp::run
