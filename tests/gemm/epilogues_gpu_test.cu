// SPDX-License-Identifier: Apache-2.0
// Every epilogue against its definition; and altered ones, which the comparison must see.
#include "gemm_case.hpp"

namespace aisp::gemm {
namespace {

using AlongK = Operand<bf16>;
using C = Config<AlongK, AlongK, InTensorCores, Shape{.tile_n = 128, .stages = 4}>;
constexpr Sizes3 sizes{150, 208, 72};

class Epilogues : public HopperTest {
 protected:
  void SetUp() override {
    HopperTest::SetUp();
    if (IsSkipped()) return;
    product_.emplace(sizes);
  }
  double product(std::size_t i, std::size_t j) const { return product_->product(i, j); }
  template <class Epilogue, class Store = RowsStore<float>>
  std::vector<float> run(const Epilogue& epilogue) const {
    return product_->run<Bands, Epilogue, Store>(epilogue);
  }

  std::optional<Case<C>> product_;
  std::vector<bf16> bias_host_ = integers<bf16>(sizes.n, 3);
  // As long as either is, since a test takes one for the other.
  static constexpr std::size_t longer = std::max(sizes.m, sizes.n);
  std::vector<float> rows_host_ = powers_of_two(longer, 4), columns_host_ = powers_of_two(longer, 5);
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST_F(Epilogues, Scaled) {
  const auto expected = [&](std::size_t i, std::size_t j) { return product(i, j) * 0.25; };
  EXPECT_TRUE(right<float>(run(Scaled{0.25f}), sizes.n, expected));
  EXPECT_FALSE(right<float>(run(Scaled{0.2502f}), sizes.n, expected));
  EXPECT_FALSE(right<float>(run(Identity{}), sizes.n, expected));
}

TEST_F(Epilogues, RowColumnScaled) {
  const OnGpu<float> rows{rows_host_}, columns{columns_host_};
  const auto expected = [&](std::size_t i, std::size_t j) { return product(i, j) * rows_host_[i] * columns_host_[j]; };
  EXPECT_TRUE(right<float>(run(RowColumnScaled{rows.get(), columns.get()}), sizes.n, expected));
  EXPECT_TRUE(right((run<RowColumnScaled, RowsStore<bf16>>({rows.get(), columns.get()})), sizes.n, expected));
  const OnGpu<float> shifted{[this] {
    std::vector<float> moved = rows_host_;
    std::rotate(moved.begin(), moved.begin() + 1, moved.end());
    return moved;
  }()};
  EXPECT_FALSE(right<float>(run(RowColumnScaled{shifted.get(), columns.get()}), sizes.n, expected));
  EXPECT_FALSE(right<float>(run(RowColumnScaled{columns.get(), rows.get()}), sizes.n, expected));
}

TEST_F(Epilogues, Bias) {
  const OnGpu<bf16> bias{bias_host_};
  const auto expected = [&](std::size_t i, std::size_t j) {
    return product(i, j) + static_cast<double>(static_cast<float>(bias_host_[j]));
  };
  EXPECT_TRUE(right<float>(run(Bias{bias.get()}), sizes.n, expected));
  EXPECT_TRUE(right((run<Bias, TmaStore<>>({bias.get()})), sizes.n, expected));
  EXPECT_FALSE(right<float>(run(Identity{}), sizes.n, expected));
}

// One that takes its bias from the neighbour in the last eight columns alone.
struct MisplacedBias {
  static constexpr int narrowing = 1;
  const bf16* bias = nullptr;
  template <int count>
  __device__ void operator()(float (&sums)[count], const Fragment& at) const {
    Bias{bias}(sums, at);
    for (int i = 0; i < count; ++i)
      if (at.column(i) + 8 >= at.column_end && at.column(i) < at.column_end)
        sums[i] += static_cast<float>(bias[at.column(i) ^ 1]) - static_cast<float>(bias[at.column(i)]);
  }
};
TEST_F(Epilogues, AMisplacedBiasIsSeen) {
  const OnGpu<bf16> bias{bias_host_};
  EXPECT_FALSE(right<float>(run(MisplacedBias{bias.get()}), sizes.n, [&](std::size_t i, std::size_t j) {
    return product(i, j) + static_cast<double>(static_cast<float>(bias_host_[j]));
  }));
}

TEST_F(Epilogues, SwiGluHalvesTheColumns) {
  const auto expected = [&](std::size_t i, std::size_t j) {
    const std::size_t gate = j / 8 * 16 + j % 8;
    const double g = product(i, gate) / 16, u = product(i, gate + 8) / 16;
    return g * sigmoid(g) * u;
  };
  using Both = Chain<Scaled, SwiGlu>;
  const Both epilogue{{0.0625f}, {}};
  const std::size_t columns = sizes.n / 2;
  EXPECT_TRUE(right<float>(run(epilogue), columns, expected, 1e-5));
  EXPECT_TRUE(right((run<Both, TmaStore<>>(epilogue)), columns, expected, 0.005));
  EXPECT_TRUE(right((run<Both, RowsStore<bf16>>(epilogue)), columns, expected, 0.005));
  EXPECT_FALSE(right<float>(run(Chain{SwiGlu{}, Scaled{0.0625f}}), columns, expected, 0.005));
}

TEST_F(Epilogues, Residual) {
  const std::vector<bf16> residual = integers<bf16>(sizes.m * sizes.n, 6, 100);
  const OnGpu<bf16> on_gpu{residual};
  const auto expected = [&](std::size_t i, std::size_t j) {
    return product(i, j) + static_cast<double>(static_cast<float>(residual[i * sizes.n + j]));
  };
  EXPECT_TRUE(right<float>(run(Residual{on_gpu.get()}), sizes.n, expected));
  EXPECT_TRUE(right((run<Residual, TmaStore<>>({on_gpu.get()})), sizes.n, expected));
  EXPECT_FALSE(right<float>(run(Identity{}), sizes.n, expected));
}

// Some results saturate, and the largest lies where a tile's tail is.
TEST_F(Epilogues, QuantizeE4m3) {
  const OnGpu<float> scale{{8.0f}};
  double largest = 0;
  for (std::size_t i = 0; i < sizes.m; ++i)
    for (std::size_t j = 0; j < sizes.n; ++j) largest = std::max(largest, std::abs(product(i, j)));
  ASSERT_GT(largest * 8, 448);
  const auto expected = [&](std::size_t i, std::size_t j) { return std::clamp(product(i, j) * 8, -448.0, 448.0); };
  const auto quantize = [&]<class Store>(Store) {
    const OnGpu<float> amax{{0.0f}};
    const auto results = run<QuantizeE4m3, Store>({scale.get(), amax.get()});
    EXPECT_EQ(amax.host()[0], static_cast<float>(largest));
    return results;
  };
  EXPECT_TRUE(right<e4m3>(quantize(RowsStore<e4m3>{}), sizes.n, expected));
  EXPECT_TRUE(right<e4m3>(quantize(TmaStore<e4m3, 1>{}), sizes.n, expected));
  EXPECT_FALSE(right<e4m3>((run<Scaled, RowsStore<e4m3>>({7.0f})), sizes.n, expected));
}

// The same in two parts, and the magnitude without a result.
TEST_F(Epilogues, AmaxAndScale) {
  const OnGpu<float> scale{{8.0f}}, amax{{0.0f}}, held{{1e6f}}, alone{{0.0f}};
  double largest = 0;
  for (std::size_t i = 0; i < sizes.m; ++i)
    for (std::size_t j = 0; j < sizes.n; ++j) largest = std::max(largest, std::abs(product(i, j)));
  const auto expected = [&](std::size_t i, std::size_t j) { return std::clamp(product(i, j) * 8, -448.0, 448.0); };
  using Both = Chain<Amax, ScaledOnGpu>;
  const std::vector<float> scaled = run<Both, TmaStore<e4m3, 1>>({{amax.get()}, {scale.get()}});
  EXPECT_TRUE(right<e4m3>(scaled, sizes.n, expected));
  expect_shifts_seen<e4m3>(scaled, sizes.n, expected);
  EXPECT_TRUE(right<e4m3>((run<Both, RowsStore<e4m3>>({{held.get()}, {scale.get()}})), sizes.n, expected));
  const std::vector<float> untouched_results = run<Amax, NoStore>({alone.get()});
  EXPECT_EQ(amax.host()[0], static_cast<float>(largest));
  EXPECT_EQ(alone.host()[0], static_cast<float>(largest));
  EXPECT_EQ(held.host()[0], 1e6f);
  for (const float value : untouched_results) ASSERT_EQ(value, untouched);
  // The largest of sums that were scaled before is another one.
  const OnGpu<float> too_late{{0.0f}};
  run<Chain<ScaledOnGpu, Amax>, NoStore>({{scale.get()}, {too_late.get()}});
  EXPECT_NE(too_late.host()[0], static_cast<float>(largest));
}

TEST_F(Epilogues, ChainOfThree) {
  const OnGpu<bf16> bias{bias_host_};
  const OnGpu<float> scale{{0.5f}}, amax{{0.0f}};
  using Three = Chain<Bias, Chain<Scaled, QuantizeE4m3>>;
  const Three epilogue{{bias.get()}, {{2.0f}, {scale.get(), amax.get()}}};
  const std::vector<float> results = run<Three, TmaStore<e4m3, 1>>(epilogue);
  const auto expected = [&](std::size_t i, std::size_t j) {
    return product(i, j) + static_cast<double>(static_cast<float>(bias_host_[j]));
  };
  EXPECT_TRUE(right<e4m3>(results, sizes.n, expected));
  expect_shifts_seen<e4m3>(results, sizes.n, expected);
  EXPECT_FALSE(right<e4m3>(results, sizes.n, [this](std::size_t i, std::size_t j) { return product(i, j); }));
}

}  // namespace
}  // namespace aisp::gemm
