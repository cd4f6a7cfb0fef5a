// SPDX-License-Identifier: Apache-2.0
#include "measure/execution.hpp"

#include <gtest/gtest.h>

#include <bitset>

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

}  // namespace
}  // namespace aisp::measure
