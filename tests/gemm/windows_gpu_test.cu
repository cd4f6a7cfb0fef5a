// SPDX-License-Identifier: Apache-2.0
// Convolutions: the rows of A are windows of images, which are loaded from there.
#include "gemm_case.hpp"

namespace aisp::gemm {
namespace {

using GemmWindows = HopperTest;
using Bf16 = Operand<bf16>;
using Wide = Config<Bf16, Bf16, InTensorCores, Shape{.tile_n = 256, .stages = 4, .cluster = 2}>;
using High = Config<Bf16, Bf16, InTensorCores, Shape{.tile_m = 256, .tile_n = 64, .stages = 5, .cluster = 2}>;
using Pingpong = Config<Bf16, Bf16, InTensorCores, Shape{.tile_n = 128, .stages = 6, .pingpong = true, .cluster = 2}>;
// Boxes of 192 pixels are no power of two.
using Three = Config<Bf16, Bf16, InTensorCores, Shape{.tile_m = 192, .tile_n = 64, .consumers = 3}>;
using OneByte = Config<Operand<e4m3>, Operand<e4m3>, Promoted, Shape{.tile_m = 64, .tile_n = 64, .consumers = 1}>;

struct Images {
  int count, height, width, channels, filter = 3;
};

template <class C>
class Convolution {
 public:
  using Element = typename C::A::Element;
  using Engine = Gemm<C, Windows, Scaled, RowsStore<bf16>>;

  Convolution(const Images& of, std::size_t columns)
      : of_{of},
        columns_{columns},
        k_{size(of.filter) * size(of.filter) * size(of.channels)},
        x_host_{integers<Element>(pixels() * size(of.channels), 1)},
        w_host_{integers<Element>(columns * k_, 2)} {}

  Windows windows() const {
    return {.height = of_.height, .width = of_.width, .channels = of_.channels, .filter = of_.filter, .band = 2};
  }
  // The same pixels as images that are as high as these are wide: a planted fault.
  Windows turned() const {
    Windows exchanged = windows();
    std::swap(exchanged.height, exchanged.width);
    return exchanged;
  }
  // Whether every pixel is right that the engine makes of such windows, and 64 elements behind the last one are left alone. What
  // is expected sees its pixels through windows that are moved to the right by so many, another planted fault.
  testing::AssertionResult right(const Windows& windows, int moved = 0) const {
    const OnGpu<Element> x{x_host_}, w{w_host_};
    const std::size_t count = pixels() * columns_;
    const OnGpu<bf16> y{std::vector<bf16>(count + 64, bf16{untouched})};
    const Engine engine{{.a = x.get(), .b = w.get(), .c = y.get(), .m = pixels(), .n = columns_, .k = k_}, windows};
    engine.run(nullptr, {0.5f});
    check(cudaDeviceSynchronize());
    std::vector<float> results = as_floats(y.host());
    for (std::size_t i = count; i < results.size(); ++i) EXPECT_EQ(results[i], untouched) << i - count << " elements behind C";
    results.resize(count);
    return gemm::right(results, columns_, [&](std::size_t pixel, std::size_t column) { return expected(pixel, column, moved); });
  }

 private:
  static std::size_t size(int extent) { return static_cast<std::size_t>(extent); }
  std::size_t pixels() const { return size(of_.count) * size(of_.height) * size(of_.width); }

  // By the definition.
  double expected(std::size_t pixel, std::size_t column, int moved) const {
    const int in_all = static_cast<int>(pixel), x = in_all % of_.width, y = in_all / of_.width % of_.height;
    double sum = 0;
    for (int down = 0; down < of_.filter; ++down)
      for (int right = 0; right < of_.filter; ++right) {
        const int from_x = x + right - of_.filter / 2 + moved, from_y = y + down - of_.filter / 2;
        if (from_x < 0 || from_x >= of_.width || from_y < 0 || from_y >= of_.height) continue;
        const std::size_t of_x = size(in_all + (from_y - y) * of_.width + from_x - x) * size(of_.channels);
        const std::size_t of_w = column * k_ + size(down * of_.filter + right) * size(of_.channels);
        for (std::size_t c = 0; c < size(of_.channels); ++c)
          sum += static_cast<double>(static_cast<float>(x_host_[of_x + c])) *
                 static_cast<double>(static_cast<float>(w_host_[of_w + c]));
      }
    return 0.5 * sum;
  }

  Images of_;
  std::size_t columns_, k_;
  std::vector<Element> x_host_, w_host_;
};

template <class C>
testing::AssertionResult convolved(const Images& images, std::size_t columns = 72) {
  const Convolution<C> convolution{images, columns};
  return convolution.right(convolution.windows());
}

template <class C>
void expect_faults_seen(int channels) {
  const Convolution<C> convolution{{2, 7, 20, channels}, 72};
  EXPECT_FALSE(convolution.right(convolution.windows(), 1)) << "a column further to the right";
  EXPECT_FALSE(convolution.right(convolution.windows(), -1)) << "a column further to the left";
  EXPECT_FALSE(convolution.right(convolution.turned())) << "lines taken for columns";
}

TEST_F(GemmWindows, WhereTilesAreWholeLines) {
  const Images lines{2, 6, 64, 128};
  EXPECT_TRUE(convolved<Wide>(lines, 264));
  EXPECT_TRUE(convolved<High>(lines));
  EXPECT_TRUE(convolved<Pingpong>(lines, 136));
  EXPECT_TRUE(convolved<Three>(lines));
}

TEST_F(GemmWindows, WhereBoxesReachBeyondTheirImage) {
  for (const Images& images : {Images{3, 13, 29, 64}, Images{2, 9, 64, 64}, Images{1, 3, 200, 64}, Images{5, 14, 14, 64}}) {
    EXPECT_TRUE(convolved<Wide>(images)) << images.width;
    EXPECT_TRUE(convolved<High>(images)) << images.width;
    EXPECT_TRUE(convolved<Pingpong>(images)) << images.width;
    EXPECT_TRUE(convolved<Three>(images)) << images.width;
  }
}

TEST_F(GemmWindows, OfImagesThatAreAllBorder) {
  for (const Images& images : {Images{1, 1, 1, 64}, Images{7, 2, 3, 64}, Images{3, 1, 70, 64}, Images{2, 37, 1, 64}}) {
    EXPECT_TRUE(convolved<Wide>(images)) << images.width;
    EXPECT_TRUE(convolved<Pingpong>(images)) << images.width;
  }
}

TEST_F(GemmWindows, OfOtherFiltersAndTypes) {
  EXPECT_TRUE(convolved<Wide>({2, 7, 20, 64, 1}));
  EXPECT_TRUE(convolved<Wide>({2, 7, 20, 64, 5}));
  EXPECT_TRUE(convolved<OneByte>({2, 7, 20, 128}));
}

TEST_F(GemmWindows, FaultsAreSeen) {
  expect_faults_seen<Wide>(64);
  expect_faults_seen<High>(64);
  expect_faults_seen<Pingpong>(64);
  expect_faults_seen<Three>(64);
  expect_faults_seen<OneByte>(128);
}

TEST_F(GemmWindows, WhatCannotBeConvolvedIsRefused) {
  const auto made = [](const Images& images) { EXPECT_TRUE(convolved<Wide>(images)); };
  EXPECT_THROW(made({1, 4, 16, 32}), std::logic_error);     // a stage has 64 channels of one tap
  EXPECT_THROW(made({1, 4, 16, 64, 2}), std::logic_error);  // a filter without a middle
  using Engine = Gemm<Wide, Windows, Identity, RowsStore<bf16>>;
  const Windows windows{.height = 4, .width = 16, .channels = 64};
  const auto of = [](std::size_t m, std::size_t k) { return Engine::Problem{.m = m, .n = 64, .k = k}; };
  EXPECT_THROW((Engine{of(65, 576), windows}), std::logic_error);  // a part of an image
  EXPECT_THROW((Engine{of(64, 64), windows}), std::logic_error);   // one tap of nine
  EXPECT_NO_THROW((Engine{of(0, 576), windows}));
}

}  // namespace
}  // namespace aisp::gemm
