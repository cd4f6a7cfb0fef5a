// SPDX-License-Identifier: Apache-2.0
// The times by which a host variant that remembers its results is told from one whose inputs are in caches.
#include "run/child/audit/known_inputs.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace aisp::run {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<Clock::time_point> begun;

class NotesItsBeginning final : public Workload {
 public:
  explicit NotesItsBeginning(Setup& setup) : x_{setup.input<float>(1, uniform(0, 1))}, y_{setup.output<float>(1)} {}
  Cost cost() const override { return {.host_bytes = 8}; }
  double expected(std::size_t) const override { return x_.host(0); }
  void run(Launch&) {
    begun.push_back(Clock::now());
    y_[0] = x_.get()[0];
  }

 private:
  Input<float> x_;
  Output<float> y_;
};

constexpr Pair notes_its_beginning{.teaches = "test",
                                   .make = make<NotesItsBeginning>,
                                   .baseline = {.name = "copy", .run = call<&NotesItsBeginning::run>},
                                   .optimized = variants({{.name = "again", .run = call<&NotesItsBeginning::run>}}),
                                   .device = Device::host};

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

TEST(KnownInputs, OtherProgramsMeetNewOnesAndKnownOnesAlike) {
  pair::Session session{notes_its_beginning, {}};
  measure::Executor executor{session, {}};
  base::OneWayRandom random{1};
  const Repeats times = repeat(executor, session, notes_its_beginning.baseline, random);
  EXPECT_EQ(times.new_ms.size(), times.known_ms.size());
  ASSERT_GT(begun.size(), times.new_ms.size() + times.known_ms.size()) << "others come between, as there is little input";
  for (std::size_t i = 1; i < begun.size(); ++i) EXPECT_GE(begun[i] - begun[i - 1], std::chrono::milliseconds{1}) << i;
}

}  // namespace
}  // namespace aisp::run
