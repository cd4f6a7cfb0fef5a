// SPDX-License-Identifier: Apache-2.0
// NVRTC takes the device headers of the engine, which include nothing of the host's, and makes code of them that multiplies and
// stores. It needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nvrtc.h>
#include <aisp/library.hpp>

#include <string>
#include <vector>

namespace aisp {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Compiled {
  nvrtcResult status;
  std::string log, ptx;
};

// gemm_kernel with such a Config, schedule, epilogue and store.
Compiled compile(const std::string& config, const std::string& others) {
  const SharedLibrary& library = SharedLibrary::open(Library::nvrtc);
#define AISP_OF_NVRTC(name) const auto name = library.function<decltype(::name)>(#name)
  AISP_OF_NVRTC(nvrtcCreateProgram);
  AISP_OF_NVRTC(nvrtcAddNameExpression);
  AISP_OF_NVRTC(nvrtcCompileProgram);
  AISP_OF_NVRTC(nvrtcGetProgramLogSize);
  AISP_OF_NVRTC(nvrtcGetProgramLog);
  AISP_OF_NVRTC(nvrtcGetPTXSize);
  AISP_OF_NVRTC(nvrtcGetPTX);
  AISP_OF_NVRTC(nvrtcGetCUBINSize);
  AISP_OF_NVRTC(nvrtcDestroyProgram);
#undef AISP_OF_NVRTC
  const std::string source = "#include \"gemm/kernel.cuh\"\nusing namespace aisp::gemm;\nusing C = " + config + ";\n";
  nvrtcProgram program = nullptr;
  EXPECT_EQ(nvrtcCreateProgram(&program, source.c_str(), "engine.cu", 0, nullptr, nullptr), NVRTC_SUCCESS);
  EXPECT_EQ(nvrtcAddNameExpression(program, ("gemm_kernel<C, " + others + ">").c_str()), NVRTC_SUCCESS);
  const std::vector<const char*> options = {"-arch=sm_90a",
                                            "-std=c++20",
                                            "--ptxas-options=--warn-on-spills",
                                            "-I" AISP_SOURCE_DIR "/include",
                                            "-I" AISP_SOURCE_DIR "/chapters/shared",
                                            "-I" AISP_CUDA_INCLUDE};
  Compiled made;
  made.status = nvrtcCompileProgram(program, static_cast<int>(options.size()), options.data());
  std::size_t size = 0;
  nvrtcGetProgramLogSize(program, &size);
  made.log.resize(size);
  nvrtcGetProgramLog(program, made.log.data());
  if (made.status == NVRTC_SUCCESS) {
    EXPECT_EQ(nvrtcGetCUBINSize(program, &size), NVRTC_SUCCESS);
    EXPECT_GT(size, 4096u);
    nvrtcGetPTXSize(program, &size);
    made.ptx.resize(size);
    nvrtcGetPTX(program, made.ptx.data());
  }
  nvrtcDestroyProgram(&program);
  return made;
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

void expect_clean(const Compiled& made) {
  ASSERT_EQ(made.status, NVRTC_SUCCESS) << made.log;
  EXPECT_THAT(made.log, Not(HasSubstr("warning"))) << made.log;
  EXPECT_THAT(made.log, Not(HasSubstr("pill"))) << made.log;
}

TEST_F(GemmUnderNvrtc, PersistentPingpong) {
  const Compiled made = compile(
      "Config<Operand<bf16>, Operand<bf16, Major::mn>, InTensorCores, Shape{.tile_n = 128, .stages = 6, .pingpong = true, "
      ".cluster = 2}>",
      "Bands, Identity, TmaStore<bf16, 2>");
  expect_clean(made);
  EXPECT_EQ(count(made.ptx, "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"), 8u);
  EXPECT_EQ(count(made.ptx, ".multicast::cluster [%"), 1u);
  EXPECT_EQ(count(made.ptx, "cp.async.bulk.tensor.2d.global.shared::cta"), 4u) << "two boxes of 64 columns for each 64 rows";
}

// Rows are stored in whole sectors: 32 columns of bf16 by one instruction of four lanes, for two rows a thread.
TEST_F(GemmUnderNvrtc, GroupedBlockScaled) {
  const Compiled made = compile("Config<Operand<e4m3>, Operand<e4m3>, BlockScaled, Shape{.tile_n = 256, .stages = 4}>",
                                "GroupedRows, Identity, RowsStore<bf16>");
  expect_clean(made);
  EXPECT_EQ(count(made.ptx, "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3"), 8u);
  EXPECT_EQ(count(made.ptx, "st.global.v4"), 256u / 32 * 2);
}

TEST_F(GemmUnderNvrtc, PromotedWithBiasGeluInFp8) {
  const Compiled made = compile("Config<Operand<e4m3>, Operand<e4m3>, Promoted, Shape{.tile_n = 128, .stages = 6, .cluster = 2}>",
                                "Bands, Chain<RowColumnScaled, Chain<BiasGelu, QuantizeE4m3>>, TmaStore<e4m3, 1>");
  expect_clean(made);
  EXPECT_EQ(count(made.ptx, "tanh.approx"), 64u);
  EXPECT_EQ(count(made.ptx, "cvt.rn.satfinite.e4m3x2.f32"), 32u);
}

TEST_F(GemmUnderNvrtc, NarrowTilesAddToFp32) {
  const Compiled made =
      compile("Config<Operand<bf16, Major::mn>, Operand<bf16>, InTensorCores, Shape{.tile_m = 64, .tile_n = 24, .consumers = 1}>",
              "Bands, Identity, RowsStore<float, true>");
  expect_clean(made);
  EXPECT_EQ(count(made.ptx, "wgmma.mma_async.sync.aligned.m64n24k16"), 4u);
  EXPECT_EQ(count(made.ptx, "st.global.v2"), 6u);
}

}  // namespace
}  // namespace aisp
