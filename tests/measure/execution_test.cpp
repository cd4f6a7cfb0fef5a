// SPDX-License-Identifier: Apache-2.0
#include "measure/execution.hpp"

#include <gtest/gtest.h>

#include <bitset>
#include <chrono>
#include <thread>

namespace aisp::measure {
namespace {

class Constant final : public Workload {
 public:
  explicit Constant(Setup& setup) : y_{setup.output<float>(1, {.name = "y"})} {}
  Cost cost() const override { return {.host_bytes = 4}; }
  double expected(std::size_t) const override { return 1; }
  void run(Launch&) { y_[0] = 1; }

 private:
  Output<float> y_;
};

constexpr Pair constant{.teaches = "test",
                        .make = make<Constant>,
                        .baseline = {.name = "constant", .run = call<&Constant::run>},
                        .optimized = variants({{.name = "again", .run = call<&Constant::run>}}),
                        .device = Device::host};

// So that verification runs a variant twice and no more: the two always differ in it, also where one was attempted twice.
TEST(Executor, PoisonIsAnyByteButThoseOfTheLastTwoExecutions) {
  pair::Session session{constant, {}};
  Executor executor{session, Conditions{}};
  executor.seed(1);
  std::bitset<256> seen;
  int last = 0, before = 0;
  for (int i = 0; i < 5000; ++i) {
    Capture capture{.digest = false};
    executor.execute(constant.baseline, capture);
    const int poison = executor.poison();
    ASSERT_TRUE(poison >= 1 && poison <= 255 && poison != last && poison != before) << i << ": " << poison;
    before = last, last = poison;
    seen.set(static_cast<std::size_t>(poison));
  }
  EXPECT_EQ(seen.count(), 255u);
}

// Notes what it finds in its input wherever it is called.
class Curious final : public Workload {
 public:
  explicit Curious(Setup& setup) : x_{setup.input<float>(64, uniform(-1, 1))}, y_{setup.output<float>(64)} {}
  Cost cost() const override { return {.host_bytes = 512}; }
  double expected(std::size_t i) const override { return x_.host(i); }
  void reset(Launch&) { in_reset = x_[5]; }
  void run(Launch&) {
    in_run = x_[5];
    for (std::size_t i = 0; i < 64; ++i) y_[i] = x_[i];
  }
  void metrics(std::string_view, Metrics&) override {
    in_metrics = x_[5];
    std::this_thread::sleep_for(takes);
  }
  float now() const { return x_.get()[5]; }
  static inline float in_reset, in_run, in_metrics;
  static inline std::chrono::milliseconds takes{0};

 private:
  Input<float> x_;
  Output<float> y_;
};

constexpr Pair curious{.teaches = "test",
                       .make = make<Curious>,
                       .baseline = {.name = "curious", .run = call<&Curious::run>, .reset = call<&Curious::reset>},
                       .optimized = variants({{.name = "again", .run = call<&Curious::run>}}),
                       .device = Device::host};

TEST(Executor, AResetDoesNotKnowTheInputsOfTheRun) {
  pair::Session session{curious, {}};
  Executor executor{session, Conditions{}};
  const float present = static_cast<Curious&>(session.workload()).now();
  Capture capture;
  executor.execute(curious.baseline, capture);
  EXPECT_EQ(Curious::in_run, present);
  EXPECT_NE(Curious::in_reset, present);
}

TEST(Executor, LongReportsDoNotKnowTheInputsOfLaterRuns) {
  pair::Session session{curious, {}};
  Executor executor{session, Conditions{}};
  const float present = static_cast<Curious&>(session.workload()).now();
  const auto report = [&](int times) {
    for (int i = 0; i < times; ++i) {
      Capture capture;
      executor.execute(curious.optimized[0], capture);
      executor.report(curious.optimized[0]);
      EXPECT_EQ(Curious::in_run, present);
    }
  };
  Curious::takes = std::chrono::milliseconds{2};
  report(3);
  EXPECT_EQ(Curious::in_metrics, present);
  report(1);
  EXPECT_NE(Curious::in_metrics, present);
  EXPECT_EQ(static_cast<Curious&>(session.workload()).now(), present);
}

}  // namespace
}  // namespace aisp::measure
