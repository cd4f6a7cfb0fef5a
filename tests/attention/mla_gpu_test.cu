// SPDX-License-Identifier: Apache-2.0
// Decoding over a latent cache in each of its schedules, whole and in pieces, against float64. What lies behind a sequence's last
// token is NaN.
#include <attention/mla.hpp>

#include "bench.hpp"

namespace aisp::attention::test {
namespace {

class AttentionMla : public GpuTest<9, 9> {};

// Two blocks' heads, and one token, one less and one more than a tile, several tiles.
constexpr int heads = 2 * mla_heads;
const std::vector<int> lengths{1, 460, 63, 64, 65, 129, 300, 128};
constexpr int capacity = 460;
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

// Sequences differ in how their scores go along the tokens, by the first column of the rotation: flat; up by 12 powers of two
// every 128 tokens; down; and wide apart at random.
constexpr double staircase_query = 8;
double query(int sequence, int head, int, int column) {
  return column == latent_size ? staircase_query : rounded(noise(1, sequence, head, 0, column));
}
double latent(const Problem& p, int sequence, int token, int column) {
  const double stair = 12 / (staircase_query * p.scale * 1.4426950408889634) * (token / 128);
  const double x = noise(2, sequence, 0, token, column);
  if (column == latent_size && sequence % 4 == 1) return rounded(stair);
  if (column == latent_size && sequence % 4 == 2) return rounded(-stair);
  return rounded(sequence % 4 == 3 ? 3 * x : x);
}

// [sequence][head][column] and [sequence][head]
struct Results {
  std::vector<float> o, log_sums;
};

class Latents {
 public:
  Latents()
      : problem{decoding()},
        stored_(lengths.size() * capacity * mla_key_size, nan_value),
        q_{stored_queries()},
        latents_{stored_latents()},
        lengths_{lengths},
        maps_{mla_maps(q_.get(), latents_.get(), lengths.size(), heads, capacity)} {
    problem.other_q = query;
    problem.other_k =
        problem.other_v = [this](int sequence, int, int token, int column) { return stored(sequence, token, column); };
  }

  template <MlaSchedule schedule, bool dependent = false>
  Results in_pieces(int splits) const {
    const std::size_t states = lengths.size() * static_cast<std::size_t>(splits);
    const OnGpu<float> o{std::vector<float>(states * heads * latent_size, nan_value)},
        log_sums{std::vector<float>(states * heads, nan_value)};
    Grid grid = mla_grid(heads, states);
    grid.overlapping = dependent;
    Direct{}(mla_kernel<schedule, dependent, FixedSplits>, grid, maps_,
             Mla<FixedSplits>{{lengths_.get(), splits}, heads, scaled(problem).scale_log2, o.get(), log_sums.get()});
    return {o.host(), log_sums.host()};
  }
  // `lost`: pieces at the end of each sequence that are left out, a planted fault.
  static Results merged(const Results& of, int splits, int lost = 0) {
    Results all;
    for (std::size_t row = 0; row < lengths.size() * heads; ++row) {
      const auto state = [&](int piece) { return (row / heads * splits + piece) * heads + row % heads; };
      double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
      for (int piece = 0; piece < splits - lost; ++piece) maximum = std::max<double>(maximum, of.log_sums[state(piece)]);
      std::vector<double> o(latent_size);
      for (int piece = 0; piece < splits - lost; ++piece) {
        const double weight = std::exp(of.log_sums[state(piece)] - maximum);
        sum += weight;
        for (int i = 0; i < latent_size; ++i) o[i] += weight * of.o[state(piece) * latent_size + i];
      }
      for (const double x : o) all.o.push_back(static_cast<float>(x / sum));
      all.log_sums.push_back(static_cast<float>(maximum + std::log(sum)));
    }
    return all;
  }

  Problem problem;

 private:
  static Problem decoding() {
    Problem p;
    p.heads = heads, p.kv_heads = 1, p.head_size = mla_key_size, p.value_size = latent_size;
    p.queries.assign(lengths.size(), 1), p.keys = lengths;
    p.scale = 1 / std::sqrt(192.0);
    return p;
  }
  double stored(int sequence, int token, int column) const {
    return stored_[(static_cast<std::size_t>(sequence) * capacity + token) * mla_key_size + column];
  }
  static std::vector<bf16> stored_queries() {
    std::vector<bf16> q;
    for (int s = 0; s < static_cast<int>(lengths.size()); ++s)
      for (int head = 0; head < heads; ++head)
        for (int i = 0; i < mla_key_size; ++i) q.push_back(static_cast<float>(query(s, head, 0, i)));
    return q;
  }
  std::vector<bf16> stored_latents() {
    for (int s = 0; s < static_cast<int>(lengths.size()); ++s)
      for (int token = 0; token < lengths[s]; ++token)
        for (int i = 0; i < mla_key_size; ++i)
          stored_[(static_cast<std::size_t>(s) * capacity + token) * mla_key_size + i] =
              static_cast<float>(latent(problem, s, token, i));
    return {stored_.begin(), stored_.end()};
  }

  std::vector<float> stored_;
  OnGpu<bf16> q_, latents_;
  OnGpu<int> lengths_;
  MlaMaps maps_;
};

// Returns the error of a head in a sequence; infinite where a log-sum-exp is not near.
double worst(const Problem& p, const Results& found, bool with_log_sums = true) {
  double worst = 0;
  for (int s = 0; s < p.sequences(); ++s)
    for (int head = 0; head < p.heads; ++head) {
      const HeadResult wanted = expected(p, s, head);
      const std::size_t row = static_cast<std::size_t>(s) * heads + head;
      const auto first = found.o.begin() + static_cast<std::ptrdiff_t>(row * latent_size);
      worst = std::max(worst, distance({first, first + latent_size}, wanted.o));
      if (with_log_sums && !(std::abs(found.log_sums[row] - wanted.log_sums[0]) <= 2e-4 * (1 + std::abs(wanted.log_sums[0]))))
        worst = std::numeric_limits<double>::infinity();
    }
  return worst;
}

// Weights are rounded to bf16, by 2^-8 of themselves at most, and nothing else is: results are fp32.
constexpr double allowed_latent = 4e-3;

template <MlaSchedule schedule>
void check_schedule() {
  const Latents latents;
  EXPECT_LE(worst(latents.problem, (latents.in_pieces<schedule>(1))), allowed_latent) << "whole";
  const Results pieces = latents.in_pieces<schedule>(3);
  EXPECT_LE(worst(latents.problem, Latents::merged(pieces, 3)), allowed_latent) << "in three pieces";
  EXPECT_GT(worst(latents.problem, Latents::merged(pieces, 3, 1), false), allowed_latent) << "the last piece lost";
}

TEST_F(AttentionMla, OneSoftmax) { check_schedule<MlaSchedule::one_softmax>(); }
TEST_F(AttentionMla, LateHalf) { check_schedule<MlaSchedule::late_half>(); }
TEST_F(AttentionMla, Seesaw) { check_schedule<MlaSchedule::seesaw>(); }

// Neither on when the second warpgroup multiplies, nor on whether the kernel waits for the one in front.
TEST_F(AttentionMla, BitsDoNotDependOnWhen) {
  const Latents latents;
  const Results first = latents.in_pieces<MlaSchedule::one_softmax>(1), late = latents.in_pieces<MlaSchedule::late_half>(1),
                behind = latents.in_pieces<MlaSchedule::late_half, true>(1);
  EXPECT_EQ(first.o, late.o);
  EXPECT_EQ(first.log_sums, late.log_sums);
  EXPECT_EQ(late.o, behind.o);
  EXPECT_EQ(late.log_sums, behind.log_sums);
}

TEST_F(AttentionMla, FaultsAreSeen) {
  const Latents latents;
  const Problem& p = latents.problem;
  const Results found = latents.in_pieces<MlaSchedule::late_half>(1);
  ASSERT_LE(worst(p, found), allowed_latent);
  const auto seen = [&](const char* fault, const std::function<void(Problem&)>& change) {
    Problem wrong = p;
    change(wrong);
    EXPECT_GT(worst(wrong, found, false), allowed_latent) << fault;
  };
  seen("the newest token not seen",
       [&](Problem& w) { w.visible = [&](int s, int, int, int key) { return lengths[s] == 1 || key + 1 < lengths[s]; }; });
  seen("a tile lost", [](Problem& w) { w.visible = [](int, int, int, int key) { return key / mla_tile != 1; }; });
  seen("the rotation's columns left out", [](Problem& w) { w.head_size = latent_size; });
  seen("another head's query",
       [](Problem& w) { w.other_q = [](int s, int head, int row, int column) { return query(s, head ^ 1, row, column); }; });
  seen("values a column further", [&](Problem& w) {
    w.other_v = [&](int s, int head, int key, int column) { return p.other_k(s, head, key, column + 1); };
  });
  seen("another scale", [](Problem& w) { w.scale *= 1.02; });
}

}  // namespace
}  // namespace aisp::attention::test
