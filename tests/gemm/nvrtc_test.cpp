// SPDX-License-Identifier: Apache-2.0
// NVRTC takes the device headers of the engine, which include nothing of the host's, and makes machine code of them. It needs no
// GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <aisp/libraries/nvrtc.hpp>

#include <string>

#include "engine_headers.hpp"

namespace aisp {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// PTX of gemm_kernel with such a Config, schedule, epilogue and store, of which machine code can be made without a warning.
std::string clean(const std::string& config, const std::string& others, const std::string& declarations = {}) {
  const KernelSource source{
      .name = "engine.cu",
      .text = "#include \"gemm/kernel.cuh\"\nusing namespace aisp::gemm;\n" + declarations + "using C = " + config + ";\n",
      .kernel = "gemm_kernel<C, " + others + ">",
      .options = {"--ptxas-options=--warn-on-spills"},
      .headers = engine_headers("gemm")};
  const Nvrtc nvrtc{90, {}};
  const CompiledCode code = nvrtc.cubin(source);
  EXPECT_THAT(code.symbol, HasSubstr("gemm_kernel"));
  EXPECT_THAT(code.log, IsEmpty());
  return nvrtc.ptx(source).bytes;
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

class GemmUnderNvrtc : public testing::Test {
 protected:
  void SetUp() override {
    if (!SharedLibrary::available(Library::nvrtc)) GTEST_SKIP() << "NVRTC is not installed";
  }
};

TEST_F(GemmUnderNvrtc, PersistentPingpong) {
  const std::string ptx = clean(
      "Config<Operand<bf16>, Operand<bf16, Major::mn>, InTensorCores, Shape{.tile_n = 128, .stages = 6, .pingpong = true, "
      ".cluster = 2}>",
      "Bands, Identity, TmaStore<bf16, 2>");
  EXPECT_EQ(count(ptx, "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"), 8u);
  EXPECT_EQ(count(ptx, ".multicast::cluster [%"), 1u);
  EXPECT_EQ(count(ptx, "cp.async.bulk.tensor.2d.global.shared::cta"), 4u) << "two boxes of 64 columns for each 64 rows";
}

// Rows are stored in whole sectors: 32 columns of bf16 by one instruction of four lanes, for two rows a thread.
TEST_F(GemmUnderNvrtc, GroupedBlockScaled) {
  const std::string ptx = clean("Config<Operand<e4m3>, Operand<e4m3>, BlockScaled, Shape{.tile_n = 256, .stages = 4}>",
                                "GroupedRows, Identity, RowsStore<bf16>");
  EXPECT_EQ(count(ptx, "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3"), 8u);
  EXPECT_EQ(count(ptx, "st.global.v4"), 256u / 32 * 2);
}

TEST_F(GemmUnderNvrtc, PromotedWithBiasGeluInFp8) {
  const std::string ptx = clean("Config<Operand<e4m3>, Operand<e4m3>, Promoted, Shape{.tile_n = 128, .stages = 6, .cluster = 2}>",
                                "Bands, Chain<RowColumnScaled, Chain<BiasGelu, QuantizeE4m3>>, TmaStore<e4m3, 1>");
  EXPECT_EQ(count(ptx, "tanh.approx"), 64u);
  EXPECT_EQ(count(ptx, "cvt.rn.satfinite.e4m3x2.f32"), 32u);
}

// Windows of images come by a map of four dimensions, and nothing else changes.
TEST_F(GemmUnderNvrtc, WindowsOfImages) {
  const std::string ptx =
      clean("Config<Operand<bf16>, Operand<bf16>, InTensorCores, Shape{.tile_n = 256, .stages = 4, .cluster = 2}>",
            "Windows, Identity, RowsStore<bf16>");
  EXPECT_EQ(count(ptx, "cp.async.bulk.tensor.4d.shared::cluster.global"), 1u);
  EXPECT_EQ(count(ptx, "cp.async.bulk.tensor.2d.shared::cluster.global"), 1u);
  EXPECT_EQ(count(ptx, "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16"), 4u);
  EXPECT_EQ(count(ptx, "st.global.v4"), 256u / 32 * 2);
}

TEST_F(GemmUnderNvrtc, NarrowTilesAddToFp32) {
  const std::string ptx =
      clean("Config<Operand<bf16, Major::mn>, Operand<bf16>, InTensorCores, Shape{.tile_m = 64, .tile_n = 24, .consumers = 1}>",
            "Bands, Identity, RowsStore<float, true>");
  EXPECT_EQ(count(ptx, "wgmma.mma_async.sync.aligned.m64n24k16"), 4u);
  EXPECT_EQ(count(ptx, "st.global.v2"), 6u);
}

// Boxes of 64 columns: two for each 64 rows, brought and stored.
TEST_F(GemmUnderNvrtc, ExchangesAnotherMatrixForResults) {
  const std::string ptx = clean(
      "Config<Operand<bf16>, Operand<bf16>, InTensorCores, Shape{.tile_n = 128, .stages = 5, .pingpong = true, .cluster = 2}>",
      "Bands, TimesOther, TmaExchange", R"(struct TimesOther {
  static constexpr int narrowing = 1;
  float* partial;
  template <int columns>
  using Kept = ColumnSums<columns>;
  template <int count, class Other>
  __device__ void operator()(float (&sums)[count], const Fragment&, const Other& other, ColumnSums<count * 2>& kept) const {
#pragma unroll
    for (int i = 0; i < count; i += 8) {
      float values[8];
      other.load(i, values);
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[i + j] *= values[j];
    }
    kept.add(sums);
  }
  template <int columns>
  __device__ void end_tile(const ColumnSums<columns>& kept, const Fragment& at, const Meeting& meeting) const {
    kept.store(partial, at, meeting);
  }
};
)");
  EXPECT_EQ(count(ptx, "ldmatrix.sync.aligned.m8n8.x4"), 16u);
  EXPECT_EQ(count(ptx, "stmatrix.sync.aligned.m8n8.x4"), 16u);
  EXPECT_EQ(count(ptx, "cp.async.bulk.tensor.2d.global.shared::cta"), 4u);
  EXPECT_EQ(count(ptx, "shfl"), 1u) << "the number of the warp alone";
}

}  // namespace
}  // namespace aisp
