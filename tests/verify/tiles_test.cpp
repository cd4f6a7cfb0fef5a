// SPDX-License-Identifier: Apache-2.0
// Errors in a part of an output that has no groups.
#include <gmock/gmock.h>

#include <cmath>

#include "verify/tiles.hpp"
#include "verify/verifier.hpp"

namespace aisp::verify {
namespace {

using testing::HasSubstr;

enum class Errors { uniform, normal, rare };

// Errors as large as the norm allows in all, and `factor` times that in one of 32 rows.
class Rows final : public Workload {
 public:
  static constexpr std::size_t width = 1024, rows = 256, count = rows * width;
  static constexpr double limit = 1e-3;
  static inline Errors errors = Errors::uniform;
  static inline double size = 1, factor = 1;

  explicit Rows(Setup& setup) : x_{setup.input<float>(count, normal(0, 1))}, y_{setup.output<float>(count, {.name = "y"})} {}
  Cost cost() const override { return {.host_bytes = 8.0 * count}; }
  double expected(std::size_t i) const override { return x_.host(i); }
  void exactly(Launch&) {
    for (std::size_t i = 0; i < count; ++i) y_[i] = x_[i];
  }
  void roughly(Launch&) {
    for (std::size_t i = 0; i < count; ++i) {
      const double error = limit * size * (i / width % 32 == 7 ? factor : 1) * drawn(i);
      y_[i] = static_cast<float>(static_cast<double>(x_[i]) + error);
    }
  }

 private:
  // A mean square of 1.
  static double drawn(std::size_t i) {
    const auto even = [](std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; };
    const double first = even(random_bits(9, i)), second = even(random_bits(10, i));
    switch (errors) {
      case Errors::uniform: return std::sqrt(3.0) * (2 * first - 1);
      case Errors::normal: return std::sqrt(-2 * std::log(1 - first)) * std::cos(2 * 3.14159265358979 * second);
      case Errors::rare: return first < 0.04 ? 5 : 0;
    }
    return 0;
  }
  Input<float> x_;
  Output<float> y_;
};

// The limit of an element is no matter here: it is compared with what is |x| or more, and tiles with the norm's limit.
constexpr Pair rows_pair{.teaches = "test",
                         .make = make<Rows>,
                         .baseline = {.name = "exactly", .run = call<&Rows::exactly>},
                         .optimized = variants({{.name = "roughly", .run = call<&Rows::roughly>}}),
                         .device = Device::host,
                         .tolerance = within(Rows::limit, 5 * Rows::limit)};

std::vector<std::string> found(int seeds) {
  std::vector<std::string> texts;
  for (int seed = 0; seed < seeds; ++seed) {
    pair::Session session{rows_pair, {}};
    const std::vector<const Variant*> variants{&rows_pair.baseline, rows_pair.optimized.begin()};
    for (const Outcome& outcome :
         verify(session, variants, {.seed = static_cast<std::uint64_t>(seed), .compare_with_reference = false}))
      for (const evidence::Problem& problem : outcome.problems) texts.push_back(problem.message);
  }
  return texts;
}

// Both sides may be off by the limit, so that here the whole difference may be twice that.
TEST(Tiles, IndependentErrorsThatTheNormAllowsAreNotConcentrated) {
  Rows::factor = 1;
  Rows::size = 1.9;
  for (const Errors errors : {Errors::uniform, Errors::normal}) {
    Rows::errors = errors;
    EXPECT_THAT(found(20), testing::IsEmpty());
  }
  Rows::errors = Errors::rare;
  Rows::size = 0.9;
  EXPECT_THAT(found(20), testing::IsEmpty());
}

TEST(Tiles, AnErrorOfFewRowsIsFoundThatTheNormOfAllHides) {
  Rows::errors = Errors::uniform;
  Rows::size = 0.6;
  Rows::factor = 1;
  EXPECT_THAT(found(3), testing::IsEmpty());
  Rows::factor = 9;
  const std::vector<std::string> texts = found(3);
  ASSERT_EQ(texts.size(), 3u);
  for (const std::string& text : texts) EXPECT_THAT(text, HasSubstr("in the root mean square (limit 0.004)"));
}

}  // namespace
}  // namespace aisp::verify
