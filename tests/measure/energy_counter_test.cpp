// SPDX-License-Identifier: Apache-2.0
#include "measure/energy_counter.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <vector>

#include "base/system/clock.hpp"

namespace aisp::measure {
namespace {

constexpr double patience_s = 20;

// A counter on a clock of its own, which only looks advance.
class MadeUpCounter {
 public:
  MadeUpCounter(double look_s, double step_s) : look_s_{look_s}, step_s_{step_s} {}

  std::optional<std::uint64_t> read() {
    looked_at_s.push_back(base::monotonic_s());
    const double at_s = now_s_ + look_s_ / 2;  // somewhere within the look
    const auto joules = static_cast<std::uint64_t>(std::floor(at_s / step_s_));
    now_s_ = now_s_ + (joules == long_look_to && joules != shown_ ? 10 : 1) * look_s_;
    shown_ = joules;
    if (broken) return std::nullopt;
    return joules * 1000;
  }
  double now_s() const { return now_s_; }

  std::vector<double> looked_at_s;  // on the real clock; of the watch's thread, until it has ended
  std::atomic<bool> broken = false;
  std::uint64_t long_look_to = 0;  // the look that sees this many joules first takes ten times as long

 private:
  double look_s_, step_s_;
  std::uint64_t shown_ = 0;
  std::atomic<double> now_s_ = 0.01;
};

// The last update once there are that many joules; nothing when that takes too long.
std::optional<CounterUpdate> update_at(const EnergyCounter& counter, std::uint64_t joules) {
  for (const double start_s = base::monotonic_s(); base::monotonic_s() - start_s < patience_s; base::sleep_s(0.001))
    if (const auto update = counter.last_update(); update && update->millijoules >= joules * 1000) return update;
  return std::nullopt;
}

TEST(EnergyCounter, AnUpdateIsInTheMiddleOfTheLooksThatSawIt) {
  MadeUpCounter made_up{0.006, 0.1};
  const EnergyCounter counter{[&] { return made_up.read(); }, [&] { return made_up.now_s(); }};
  const auto update = update_at(counter, 3);
  ASSERT_TRUE(update);
  EXPECT_NEAR(update->at_s, static_cast<double>(update->millijoules) * 1e-4, 0.006);
}

TEST(EnergyCounter, AnUpdateInALongLookHasNoTime) {
  MadeUpCounter made_up{0.006, 0.1};
  made_up.long_look_to = 5;
  const EnergyCounter counter{[&] { return made_up.read(); }, [&] { return made_up.now_s(); }};
  std::uint64_t seen = 0;
  for (std::uint64_t joules = 1; joules <= 8; joules = seen + 1) {
    const auto update = update_at(counter, joules);
    ASSERT_TRUE(update);
    seen = update->millijoules / 1000;
    EXPECT_NE(seen, 5u);
  }
}

TEST(EnergyCounter, ItIsLeftAloneBetweenUpdates) {
  MadeUpCounter made_up{0.2, 0.4};  // moves at every second look
  {
    const EnergyCounter counter{[&] { return made_up.read(); }, [&] { return made_up.now_s(); }};
    ASSERT_TRUE(update_at(counter, 5));
  }
  // A busy machine makes a rest longer, never shorter.
  int rests = 0;
  for (std::size_t i = 1; i < made_up.looked_at_s.size(); ++i) rests += made_up.looked_at_s[i] - made_up.looked_at_s[i - 1] > 0.3;
  EXPECT_GE(rests, 3) << "of 0.32 s after the updates to 2, 3 and 4 J";
}

// Rests are on the real clock, where no time of the made-up counter passes; this one moves at every look, the first after a rest
// too.
TEST(EnergyCounter, AnUpdateDuringARestHasNoTime) {
  MadeUpCounter made_up{0.05, 0.05};
  const EnergyCounter counter{[&] { return made_up.read(); }, [&] { return made_up.now_s(); }};
  std::optional<CounterUpdate> before = update_at(counter, 2);
  ASSERT_TRUE(before);
  const auto after = update_at(counter, before->millijoules / 1000 + 1);
  ASSERT_TRUE(after);
  EXPECT_GE(after->millijoules - before->millijoules, 2000u) << "the update right after the rest was believed";
}

TEST(EnergyCounter, TheWatchEndsInTheMiddleOfAPause) {
  MadeUpCounter made_up{50, 100};
  const double start_s = base::monotonic_s();
  {
    const EnergyCounter counter{[&] { return made_up.read(); }, [&] { return made_up.now_s(); }};
    ASSERT_TRUE(update_at(counter, 2));
  }
  EXPECT_LT(base::monotonic_s() - start_s, patience_s);
}

TEST(EnergyCounter, OneThatCannotBeReadNeverMoves) {
  MadeUpCounter made_up{0.006, 0.1};
  made_up.broken = true;
  {
    const EnergyCounter counter{[&] { return made_up.read(); }, [&] { return made_up.now_s(); }};
    base::sleep_s(0.05);
    EXPECT_FALSE(counter.last_update());
  }
  EXPECT_EQ(made_up.looked_at_s.size(), 1u) << "and is not looked at again";
}

}  // namespace
}  // namespace aisp::measure
