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

// PTX of a kernel for the Config C, of which machine code can be made without a warning. `declarations`: what the Config names.
std::string clean(const std::string& config, const std::string& kernel, const std::string& declarations = {}) {
  const KernelSource source{.name = "engine.cu",
                            .text = "#include \"gemm/paired.cuh\"\n#include \"gemm/sparse.cuh\"\nusing namespace aisp::gemm;\n" +
                                    declarations + "using C = " + config + ";\n",
                            .kernel = kernel,
                            .options = {"--ptxas-options=--warn-on-spills"},
                            .headers = engine_headers("gemm")};
  const Nvrtc nvrtc{90, {}};
  const CompiledCode code = nvrtc.cubin(source);
  EXPECT_THAT(code.symbol, HasSubstr(kernel.substr(0, kernel.find('<'))));
  EXPECT_THAT(code.log, IsEmpty());
  return nvrtc.ptx(source).bytes;
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

// Products of a shape, as "m64n128k16.f32.bf16.bf16".
std::size_t products(const std::string& ptx, const std::string& what) {
  return count(ptx, "wgmma.mma_async.sync.aligned." + what);
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
      "gemm_kernel<C, Bands, Identity, TmaStore<bf16, 2>>");
  EXPECT_EQ(products(ptx, "m64n128k16.f32.bf16.bf16"), 8u);
  EXPECT_EQ(count(ptx, ".multicast::cluster [%"), 1u);
  EXPECT_EQ(count(ptx, "cp.async.bulk.tensor.2d.global.shared::cta"), 4u) << "two boxes of 64 columns for each 64 rows";
}

// Rows are stored in whole sectors: 32 columns of bf16 by one instruction of four lanes, for two rows a thread.
TEST_F(GemmUnderNvrtc, GroupedBlockScaled) {
  const std::string ptx = clean("Config<Operand<e4m3>, Operand<e4m3>, BlockScaled, Shape{.tile_n = 256, .stages = 4}>",
                                "gemm_kernel<C, GroupedRows, Identity, RowsStore<bf16>>");
  EXPECT_EQ(products(ptx, "m64n128k32.f32.e4m3.e4m3"), 8u);
  EXPECT_EQ(count(ptx, "st.global.v4"), 256u / 32 * 2);
}

// A stage of two rows of tiles gets half of B by multicast, that of an odd row both halves by itself.
TEST_F(GemmUnderNvrtc, PairedRowsWithAnOddOne) {
  const std::string ptx =
      clean("Config<Operand<bf16>, Operand<bf16>, InTensorCores, Shape{.tile_n = 256, .stages = 4, .cluster = 2}>",
            "paired_gemm_kernel<C, PairedRows, Identity, RowsStore<bf16>>");
  EXPECT_EQ(count(ptx, ".multicast::cluster [%"), 1u);
  EXPECT_EQ(count(ptx, "cp.async.bulk.tensor.2d.shared::cluster.global"), 2u + 3u);
}

TEST_F(GemmUnderNvrtc, ListOfRowTiles) { clean("Operand<bf16>", "list_row_tiles_kernel<int>"); }

TEST_F(GemmUnderNvrtc, PromotedWithBiasGeluInFp8) {
  const std::string ptx =
      clean("Config<Operand<e4m3>, Operand<e4m3>, Promoted, Shape{.tile_n = 128, .stages = 6, .cluster = 2}>",
            "gemm_kernel<C, Bands, Chain<RowColumnScaled, Chain<BiasGelu, QuantizeE4m3>>, TmaStore<e4m3, 1>>");
  EXPECT_EQ(count(ptx, "tanh.approx"), 64u);
  EXPECT_EQ(count(ptx, "cvt.rn.satfinite.e4m3x2.f32"), 32u);
}

// Windows of images come by a map of four dimensions, and nothing else changes.
TEST_F(GemmUnderNvrtc, WindowsOfImages) {
  const std::string ptx =
      clean("Config<Operand<bf16>, Operand<bf16>, InTensorCores, Shape{.tile_n = 256, .stages = 4, .cluster = 2}>",
            "gemm_kernel<C, Windows, Identity, RowsStore<bf16>>");
  EXPECT_EQ(count(ptx, "cp.async.bulk.tensor.4d.shared::cluster.global"), 1u);
  EXPECT_EQ(count(ptx, "cp.async.bulk.tensor.2d.shared::cluster.global"), 1u);
  EXPECT_EQ(products(ptx, "m64n256k16.f32.bf16.bf16"), 4u);
  EXPECT_EQ(count(ptx, "st.global.v4"), 256u / 32 * 2);
}

TEST_F(GemmUnderNvrtc, NarrowTilesAddToFp32) {
  const std::string ptx =
      clean("Config<Operand<bf16, Major::mn>, Operand<bf16>, InTensorCores, Shape{.tile_m = 64, .tile_n = 24, .consumers = 1}>",
            "gemm_kernel<C, Bands, Identity, RowsStore<float, true>>");
  EXPECT_EQ(products(ptx, "m64n24k16"), 4u);
  EXPECT_EQ(count(ptx, "st.global.v2"), 6u);
}

TEST_F(GemmUnderNvrtc, BoxesAreAddedToFp32) {
  const std::string ptx = clean("Config<Operand<bf16, Major::mn>, Operand<bf16, Major::mn>, InTensorCores, Shape{.tile_n = 128}>",
                                "gemm_kernel<C, Bands, Identity, TmaStore<float, 2, true>>");
  EXPECT_EQ(count(ptx, "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add"), 4u) << "a box has 32 columns of fp32";
  EXPECT_EQ(count(ptx, "cp.async.bulk.tensor.2d.global.shared::cta"), 0u);
}

TEST_F(GemmUnderNvrtc, OperandsOfOtherTypes) {
  const auto of = [](const std::string& a, const std::string& b, const std::string& mainloop) {
    return clean("Config<Operand<" + a + ">, Operand<" + b + ">, " + mainloop + ", Shape{.tile_n = 128}>",
                 "gemm_kernel<C, Bands, Identity, RowsStore<bf16>>");
  };
  EXPECT_EQ(products(of("__half", "__half", "InTensorCores"), "m64n128k16.f32.f16.f16"), 4u);
  EXPECT_EQ(products(of("e5m2", "e5m2", "InTensorCores"), "m64n128k32.f32.e5m2.e5m2"), 4u);
  EXPECT_EQ(products(of("e4m3", "e5m2", "Promoted"), "m64n128k32.f32.e4m3.e5m2"), 4u);
  EXPECT_EQ(products(of("e5m2", "e4m3", "Promoted"), "m64n128k32.f32.e5m2.e4m3"), 4u);
}

// Both in boxes of three dimensions, B by multicast.
TEST_F(GemmUnderNvrtc, OperandsInPanels) {
  const std::string ptx = clean("Config<Panels<e4m3>, Panels<e4m3>, Promoted, Shape{.tile_n = 32, .cluster = 2}>",
                                "gemm_kernel<C, Bands, Identity, ColumnsStore<bf16>>");
  EXPECT_EQ(count(ptx, "cp.async.bulk.tensor.3d.shared::cluster.global"), 2u);
  EXPECT_EQ(count(ptx, ".multicast::cluster [%"), 1u);
}

// The registers that a consumer takes are what three or four of them can have.
TEST_F(GemmUnderNvrtc, ThreeAndFourConsumers) {
  const std::string three =
      clean("Config<Operand<bf16>, Operand<bf16>, InTensorCores, Shape{.tile_m = 192, .tile_n = 192, .consumers = 3}>",
            "gemm_kernel<C, Bands, Identity, TmaStore<bf16, 1>>");
  EXPECT_EQ(products(three, "m64n192k16.f32.bf16.bf16"), 4u);
  EXPECT_EQ(count(three, "setmaxnreg.inc.sync.aligned.u32 160"), 1u);
  const std::string four = clean(
      "Config<Operand<bf16>, Operand<bf16>, InTensorCores, Shape{.tile_m = 256, .tile_n = 128, .stages = 3, .consumers = 4}>",
      "gemm_kernel<C, Bands, Identity, TmaStore<bf16, 1>>");
  EXPECT_EQ(products(four, "m64n128k16.f32.bf16.bf16"), 4u);
  EXPECT_EQ(count(four, "setmaxnreg.inc.sync.aligned.u32 112"), 1u);
  EXPECT_EQ(count(four, "setmaxnreg.dec.sync.aligned.u32 32"), 1u);
}

TEST_F(GemmUnderNvrtc, SumsOfIntegers) {
  const std::string ptx = clean("Config<Operand<std::int8_t>, Operand<std::int8_t>, ScaledIntegers, Shape{.tile_n = 256}>",
                                "gemm_kernel<C, Bands, Identity, TmaStore<bf16, 1>>");
  EXPECT_EQ(products(ptx, "m64n256k32.s32.s8.s8"), 4u);
  EXPECT_EQ(count(ptx, "cvt.rn.f32.s32"), 128u) << "each sum once";
}

TEST_F(GemmUnderNvrtc, IntegersThenBf16) {
  const std::string ptx = clean(
      "Config<Operand<std::int8_t>, Operand<std::int8_t>, IntegersThenBf16, Shape{.tile_n = 128, .pingpong = true, .cluster = "
      "2}>",
      "gemm_kernel<C, Bands, Identity, TmaStore<bf16, 1>>");
  EXPECT_EQ(products(ptx, "m64n128k32.s32.s8.s8"), 8u);
  EXPECT_EQ(products(ptx, "m64n128k16.f32.bf16.bf16"), 8u);
  EXPECT_EQ(count(ptx, "cp.async.bulk.tensor.3d.shared::cluster.global"), 1u) << "the second B lies along N";
}

// Codes of four bits, code + 128 in bf16.
constexpr const char* nibbles = R"(
template <bool in_registers_>
struct Nibbles {
  using Factor = bf16;
  static constexpr bool in_registers = in_registers_;
  static constexpr int codes_bytes = 64 * 64 / 2, block_bytes = codes_bytes + 64 * sizeof(float);
  struct Words {
    uint4 codes;
  };
  __device__ static unsigned pair(unsigned codes) { return (codes & 0x000F000F) | 0x43004300; }
  __device__ Words load(const std::uint8_t* block) const { return {reinterpret_cast<const uint4*>(block)[threadIdx.x % 128]}; }
  __device__ void expand(const Words& words, int step, unsigned (&a)[4]) const {
    const unsigned codes = step == 0 ? words.codes.x : step == 1 ? words.codes.y : step == 2 ? words.codes.z : words.codes.w;
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = pair(codes >> 4 * i);
  }
  __device__ void expand(const std::uint8_t* block, std::uint8_t* rows) const {
    for (int i = threadIdx.x % 128; i < 64 * 8; i += 128) {
      const unsigned codes = reinterpret_cast<const unsigned*>(block)[i];
      reinterpret_cast<uint4*>(rows)[i / 8 * 8 + (i % 8 ^ i / 8 % 8)] =
          make_uint4(pair(codes), pair(codes >> 4), pair(codes >> 8), pair(codes >> 12));
    }
  }
  __device__ float2 scales(const std::uint8_t* block) const {
    const float* const of_rows =
        reinterpret_cast<const float*>(block + codes_bytes) + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    return make_float2(of_rows[0], of_rows[8]);
  }
};
)";

// The products of a stage stand in the code twice, with either set of registers; scaled ones are added in four places, once for
// each set in the loop and once behind it.
TEST_F(GemmUnderNvrtc, PackedToRegisters) {
  const std::string ptx =
      clean("Config<Packed<Nibbles<true>>, Operand<bf16>, ExpandedInTensorCores, Shape{.tile_n = 32, .cluster = 2}>",
            "gemm_kernel<C, Bands, Identity, ColumnsStore<bf16>>", nibbles);
  EXPECT_EQ(products(ptx, "m64n32k16.f32.bf16.bf16"), 8u);
  EXPECT_EQ(count(ptx, "movmatrix"), 8u);
}
TEST_F(GemmUnderNvrtc, PackedThroughSharedMemoryWithScales) {
  const std::string ptx = clean("Config<Packed<Nibbles<false>>, Operand<bf16>, ScaledExpanded, Shape{.tile_n = 32}>",
                                "gemm_kernel<C, Bands, Identity, ColumnsStore<float>>", nibbles);
  EXPECT_EQ(products(ptx, "m64n32k16.f32.bf16.bf16"), 8u);
  EXPECT_EQ(count(ptx, "fma.rn.f32"), 4u * 16);
  EXPECT_EQ(count(ptx, "st.global.f32"), 16u);
}

// 64 of K are two products of 32, and stand in the code twice.
TEST_F(GemmUnderNvrtc, Sparse) {
  const std::string ptx = clean("Config<Sparse24, Operand<bf16>, SparseInTensorCores, Shape{.tile_n = 256, .cluster = 2}>",
                                "gemm_kernel<C, Bands, Identity, TmaStore<>>");
  EXPECT_EQ(count(ptx, "wgmma.mma_async.sp.sync.aligned.m64n256k32.f32.bf16.bf16"), 4u);
}

TEST_F(GemmUnderNvrtc, SlicesOfK) {
  constexpr const char* config = "Config<Operand<bf16>, Operand<bf16>, InTensorCores, Shape{.tile_n = 64}>";
  const std::string parts = clean(config, "gemm_kernel<C, KSlices, Identity, SlicesStore>");
  EXPECT_EQ(count(parts, "griddepcontrol.launch_dependents"), 1u);
  EXPECT_EQ(count(parts, "st.global.f32"), 32u);
  const std::string sum = clean(config, "sum_slices_kernel<32, Scaled, RowsStore<bf16>>");
  EXPECT_EQ(count(sum, "griddepcontrol.wait"), 1u);
  EXPECT_EQ(count(sum, "st.global.v4"), 2u);
}

// Sums of a whole tile are stored transposed, parts of them as they are.
TEST_F(GemmUnderNvrtc, RangesOfK) {
  constexpr const char* config = "Config<Operand<e4m3>, Operand<e4m3>, Promoted, Shape{.tile_n = 32, .stages = 6, .cluster = 2}>";
  const std::string parts = clean(config, "gemm_kernel<C, KRanges, WhenWhole<Scaled>, WholeOrPart<ColumnsStore<bf16>, 256>>");
  EXPECT_EQ(count(parts, "griddepcontrol.launch_dependents"), 1u);
  EXPECT_EQ(count(parts, "movmatrix"), 8u);
  EXPECT_EQ(count(parts, "st.global.u32"), 8u);
  EXPECT_EQ(count(parts, "st.global.v4.f32"), 4u);
  const std::string sum = clean(config, "sum_parts_kernel<C, KRanges, Scaled, ColumnsStore<bf16>>");
  EXPECT_EQ(count(sum, "griddepcontrol.wait"), 1u);
  EXPECT_EQ(count(sum, "st.global.u32"), 8u);
}

// A block adds 64 columns of a tile's parts.
TEST_F(GemmUnderNvrtc, LastRoundInRanges) {
  constexpr const char* config = "Config<Operand<bf16>, Operand<bf16>, InTensorCores, Shape{.tile_n = 128}>";
  const std::string parts =
      clean(config, "gemm_kernel<C, LastRoundInRanges<GroupedRows>, WhenWhole<Identity>, WholeOrPart<RowsStore<bf16>, 128>>");
  EXPECT_EQ(count(parts, "griddepcontrol.launch_dependents"), 1u);
  EXPECT_EQ(count(parts, "st.global.v4.f32"), 16u);
  const std::string sum = clean(config, "sum_parts_kernel<C, LastRoundInRanges<GroupedRows>, Identity, RowsStore<bf16>>");
  EXPECT_EQ(count(sum, "griddepcontrol.wait"), 1u);
  EXPECT_EQ(count(sum, "st.global.v4"), 4u);
}

// The producer fills the ring with A, waits for the kernel in front, and loads B; consumers wait, too.
TEST_F(GemmUnderNvrtc, BeginsEarly) {
  const std::string ptx = clean("Early", "gemm_kernel<C, Bands, Identity, ColumnsStore<bf16>>", R"(
struct Early : Config<Operand<e4m3>, Operand<e4m3>, Promoted, Shape{.tile_n = 32, .stages = 6}> {
  static constexpr bool begins_early = true;
};
)");
  EXPECT_EQ(count(ptx, "griddepcontrol.wait"), 2u);
  EXPECT_EQ(count(ptx, "cp.async.bulk.tensor.2d.shared::cluster.global"), 4u) << "A and B, for the first time and later";
}

TEST_F(GemmUnderNvrtc, SwiGlu) {
  const std::string ptx = clean("Config<Operand<bf16>, Operand<bf16>, InTensorCores, Shape{.tile_n = 128, .pingpong = true}>",
                                "gemm_kernel<C, Bands, SwiGlu, TmaStore<bf16, 1>>");
  EXPECT_EQ(count(ptx, "ex2.approx"), 64u);
  EXPECT_EQ(count(ptx, "cp.async.bulk.tensor.2d.global.shared::cta"), 2u) << "half of the columns: a box for each 64 rows";
}

TEST_F(GemmUnderNvrtc, Residual) {
  const std::string ptx = clean("Config<Operand<bf16>, Operand<bf16>, InTensorCores, Shape{.tile_n = 128}>",
                                "gemm_kernel<C, Bands, Residual, RowsStore<bf16>>");
  EXPECT_EQ(count(ptx, "ld.global"), 32u) << "two elements at once";
  EXPECT_EQ(count(ptx, "st.global.v4"), 128u / 32 * 2);
}

TEST_F(GemmUnderNvrtc, Amax) {
  constexpr const char* config = "Config<Operand<e4m3>, Operand<e4m3>, InTensorCores, Shape{.tile_n = 128}>";
  const std::string both = clean(config, "gemm_kernel<C, Bands, Chain<Amax, ScaledOnGpu>, TmaStore<e4m3, 1>>");
  EXPECT_EQ(count(both, "redux.sync.max.u32"), 1u);
  EXPECT_EQ(count(both, "atom.global.max.u32") + count(both, "red.global.max.u32"), 1u);
  EXPECT_EQ(count(both, "cvt.rn.satfinite.e4m3x2.f32"), 32u);
  const std::string alone = clean(config, "gemm_kernel<C, Bands, Amax, NoStore>");
  EXPECT_EQ(count(alone, "redux.sync.max.u32"), 1u);
  EXPECT_EQ(count(alone, "st.global"), 0u);
}

// Boxes of 64 columns: two for each 64 rows, brought and stored.
TEST_F(GemmUnderNvrtc, ExchangesAnotherMatrixForResults) {
  const std::string ptx = clean(
      "Config<Operand<bf16>, Operand<bf16>, InTensorCores, Shape{.tile_n = 128, .stages = 5, .pingpong = true, .cluster = 2}>",
      "gemm_kernel<C, Bands, TimesOther, TmaExchange>", R"(struct TimesOther {
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
