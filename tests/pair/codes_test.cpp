// SPDX-License-Identifier: Apache-2.0
// Bytes of codes: how messages show them, and how many steps they are apart.
#include <gtest/gtest.h>

#include <stdexcept>

#include "pair/memory/memory.hpp"
#include "pair/session.hpp"

namespace aisp::pair {
namespace {

TEST(Codes, AreShownAsWhatTheyStandFor) {
  EXPECT_EQ(element_text(0x3A, ElementType::e2m1x2), "0x3a (-1, 1.5)");
  EXPECT_EQ(element_text(0x71, ElementType::e2m1x2), "0x71 (0.5, 6)");
  EXPECT_EQ(element_text(0x80, ElementType::e2m1x2), "0x80 (0, -0)");
  EXPECT_EQ(element_text(0x8F, ElementType::s4x2), "0x8f (-1, -8)");
  EXPECT_EQ(element_text(0x1F, ElementType::e3m2), "0x1f (28)");
  EXPECT_EQ(element_text(0x21, ElementType::e3m2), "0x21 (-0.0625)");
  EXPECT_EQ(element_text(120, ElementType::e8m0), "0x78 (2^-7)");
  EXPECT_EQ(element_text(255, ElementType::e8m0), "0xff (NaN)");
  EXPECT_EQ(element_text(120, ElementType::u8), "120");
  EXPECT_EQ(element_text(0.25, ElementType::f32), "0.25");
  EXPECT_EQ(element_text(300, ElementType::e2m1x2), "300") << "a reference that is no byte";
}

TEST(Codes, AreAsManyStepsApartAsTheFartherOfTwo) {
  EXPECT_EQ(steps_between(0x21, 0x21, ElementType::e2m1x2), 0);
  EXPECT_EQ(steps_between(0x20, 0x23, ElementType::e2m1x2), 3);
  EXPECT_EQ(steps_between(0x51, 0x12, ElementType::e2m1x2), 4);
  EXPECT_EQ(steps_between(0x09, 0x01, ElementType::e2m1x2), 2) << "-0.5 and 0.5";
  EXPECT_EQ(steps_between(0x08, 0x00, ElementType::e2m1x2), 0) << "both zeros";
  EXPECT_EQ(steps_between(0x0F, 0x00, ElementType::s4x2), 1) << "-1 and 0";
  EXPECT_EQ(steps_between(0x80, 0x70, ElementType::s4x2), 15) << "-8 and 7";
  EXPECT_EQ(steps_between(0x21, 0x01, ElementType::e3m2), 2);
  EXPECT_EQ(steps_between(127, 125, ElementType::e8m0), 2);
}

class Packed final : public Workload {
 public:
  explicit Packed(Setup& setup) : codes_{setup.output<std::uint8_t>(64, {.name = "codes", .codes = ElementType::e2m1x2})} {}
  Cost cost() const override { return {.host_bytes = 64}; }
  void run(Launch&) {}

 private:
  Output<std::uint8_t> codes_;
};

class TooWide final : public Workload {
 public:
  explicit TooWide(Setup& setup) : codes_{setup.output<std::uint16_t>(64, {.name = "wide", .codes = ElementType::s4x2})} {}
  Cost cost() const override { return {}; }
  void run(Launch&) {}

 private:
  Output<std::uint16_t> codes_;
};

template <class W>
constexpr Pair pair_of(Tolerance tolerance) {
  return {.teaches = "test",
          .make = make<W>,
          .baseline = {.name = "a", .run = call<&W::run>},
          .optimized = variants({{.name = "b", .run = call<&W::run>}}),
          .device = Device::host,
          .tolerance = tolerance};
}

TEST(Codes, HaveNoNorm) {
  constexpr Pair within_a_norm = pair_of<Packed>(within(1e-2)), by_steps = pair_of<Packed>(within_steps(1, 0.01)),
                 by_default = pair_of<Packed>(automatic);
  const Session norm{within_a_norm, {}}, steps{by_steps, {}}, untold{by_default, {}};
  EXPECT_THROW(norm.limits(within_a_norm.baseline, 0), std::logic_error);
  EXPECT_EQ(steps.limits(by_steps.baseline, 0).kind, Tolerance::Kind::codes);
  EXPECT_EQ(untold.limits(by_default.baseline, 0).kind, Tolerance::Kind::exact);
}

TEST(Codes, AreInOneByte) {
  constexpr Pair wide = pair_of<TooWide>(exact);
  EXPECT_THROW((Session{wide, {}}), std::logic_error);
}

}  // namespace
}  // namespace aisp::pair
