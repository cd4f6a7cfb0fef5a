// SPDX-License-Identifier: Apache-2.0
// Limits of groups of which a few elements are compared with the reference.
#include <gmock/gmock.h>

#include "verify/verifier.hpp"

namespace aisp::verify {
namespace {

// Errors of 2e-3, uniform; of the seventh group as many times that as `factor`.
class Heads final : public Workload {
 public:
  static constexpr std::size_t size = 4096, heads = 32, seventh = 7;
  static inline double factor = 1;
  explicit Heads(Setup& setup)
      : x_{setup.input<float>(heads * size, normal(0, 1))},
        y_{setup.output<float>(heads * size, {.name = "y", .groups = {size, heads}})} {}
  Cost cost() const override { return {.host_bytes = 8.0 * size * heads}; }
  double expected(std::size_t i) const override { return x_.host(i); }
  void rounded(Launch&) {
    for (std::size_t i = 0; i < y_.size(); ++i) {
      const double uniform = static_cast<double>(random_bits(9, i) >> 11) * 0x1p-52 - 1;
      y_[i] = static_cast<float>(static_cast<double>(x_[i]) * (1 + (i / size == seventh ? factor : 1) * 3.46e-3 * uniform));
    }
  }

 private:
  Input<float> x_;
  Output<float> y_;
};

// 32 samples of each group are compared: of 32 norms the farthest is a quarter above what all have.
constexpr Pair heads_pair{.teaches = "test",
                          .make = make<Heads>,
                          .baseline = {.name = "rounded", .run = call<&Heads::rounded>},
                          .optimized = variants({{.name = "again", .run = call<&Heads::rounded>}}),
                          .device = Device::host,
                          .tolerance = within(2.2e-3),
                          .reference_samples = 1024};

int failures_of(int seeds) {
  int failures = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    pair::Session session{heads_pair, {}};
    const std::vector<const Variant*> variants{&heads_pair.baseline, heads_pair.optimized.begin()};
    for (const Outcome& outcome : verify(session, variants, {.seed = static_cast<std::uint64_t>(seed)}))
      failures += !outcome.passed();
  }
  return failures;
}

TEST(Groups, FewSamplesOfAGroupMayBeOffItsNorm) {
  Heads::factor = 1;
  EXPECT_EQ(failures_of(20), 0);
}

TEST(Groups, AGroupThatIsTwiceAsFarOffIsFound) {
  Heads::factor = 2;
  EXPECT_EQ(failures_of(5), 10);
}

class FewRows final : public Workload {
 public:
  explicit FewRows(Setup& setup)
      : y_{setup.output<float>(96, {.groups = {1, 8}})}, z_{setup.output<float>(96, {.groups = {1, 3}})} {}
  Cost cost() const override { return {.host_bytes = 8.0 * 96}; }
  double expected(std::size_t) const override { return 0; }
  void nothing(Launch&) {}

 private:
  Output<float> y_, z_;
};
constexpr Pair few_pair{.teaches = "test",
                        .make = make<FewRows>,
                        .baseline = {.name = "nothing", .run = call<&FewRows::nothing>},
                        .optimized = variants({{.name = "again", .run = call<&FewRows::nothing>}}),
                        .device = Device::host};

TEST(Groups, OfFewElementsAreOne) {
  pair::Session session{few_pair, {}};
  EXPECT_EQ(session.results()[0]->groups.count, 1u);
  EXPECT_EQ(session.results()[1]->groups.count, 3u);
}

}  // namespace
}  // namespace aisp::verify
