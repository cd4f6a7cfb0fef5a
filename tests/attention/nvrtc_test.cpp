// SPDX-License-Identifier: Apache-2.0
// The engine's device headers need no header of the host: NVRTC compiles them, which takes no GPU.
#include <gtest/gtest.h>
#include <aisp/libraries/nvrtc.hpp>

#include <stdexcept>
#include <string>
#include <vector>

#include "engine_headers.hpp"

namespace aisp {
namespace {

struct Instance {
  std::string text, kernel;
};

Instance instance(const std::string& header, const std::string& kernel) {
  return {"#include \"attention/" + header + "\"\nusing namespace aisp::attention;\n", kernel};
}

KernelSource source_of(const Instance& of) {
  return {.name = "attention.cu", .text = of.text, .kernel = of.kernel, .headers = engine_headers("attention")};
}

// Returns the compiler's complaints about an instance; empty if there are none.
std::string complaints(const Instance& of) {
  try {
    return Nvrtc{90, {}}.ptx(source_of(of)).log;
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

class AttentionUnderNvrtc : public testing::Test {
 protected:
  void SetUp() override {
    if (!SharedLibrary::available(Library::nvrtc)) GTEST_SKIP() << "NVRTC is not installed";
  }
};

// Without a warning, one of spilled registers among them.
void expect_machine_code(const Instance& of) {
  KernelSource source = source_of(of);
  source.options = {"--ptxas-options=--warn-on-spills"};
  const CompiledCode code = Nvrtc{90, {}}.cubin(source);
  EXPECT_EQ(code.log, "") << of.kernel;
  EXPECT_NE(code.symbol.find(of.kernel.substr(0, of.kernel.find('<'))), std::string::npos) << code.symbol;
}

TEST_F(AttentionUnderNvrtc, BecomesMachineCode) {
  expect_machine_code(instance("forward.cuh", "forward_kernel<128, 128, NoMask, Dense, Scaled, false, InOrder>"));
  expect_machine_code(instance("backward.cuh", "backward_kernel<128, Causal, true, FirstKeysFirst>"));
  expect_machine_code(instance("mla.cuh", "mla_kernel<MlaSchedule::late_half, true, FixedSplits>"));
  expect_machine_code(instance("decode_narrow.cuh", "narrow_decode_kernel<4, E4m3Cache, FixedSplits, float>"));
  expect_machine_code(instance("decode_narrow.cuh", "narrow_decode_kernel<8, Int4Cache<SplicedCodes>, FixedSplits, bf16>"));
  expect_machine_code(instance("decode_wgmma.cuh", "page_decode_kernel<8, bf16>"));
}

TEST_F(AttentionUnderNvrtc, Compile) {
  EXPECT_EQ(complaints(instance("forward.cuh", "forward_kernel<64, 64, Window, Varlen, Alibi, true, Listed>")), "");
  EXPECT_EQ(
      complaints(instance("forward.cuh", "forward_kernel<192, 128, Ascending<Causal>, Paged<16>, Softcap, true, LongestFirst>")),
      "");
  EXPECT_EQ(complaints(instance("forward.cuh", "forward_kernel<128, 128, NoMask, Padded, AlibiFirst, false, MostTilesFirst>")),
            "");
  EXPECT_EQ(complaints(instance("varlen.cuh", "list_row_blocks<Causal, Varlen>")), "");
  EXPECT_EQ(complaints(instance("decode.cuh", "decode_kernel<128, 4, 1, PagedCache<16>, ListedSplits, float>")), "");
  EXPECT_EQ(complaints(instance("cache.cuh", "list_pieces")), "");
  EXPECT_EQ(complaints(instance("merge.cuh", "merge_states<128, FixedSplits, float, bf16>")), "");
}

TEST_F(AttentionUnderNvrtc, CompileBackwards) {
  EXPECT_EQ(complaints(instance("backward.cuh", "backward_begin<128, Causal>")), "");
  EXPECT_EQ(complaints(instance("backward.cuh", "backward_kernel<128, Causal, true>")), "");
  EXPECT_EQ(complaints(instance("backward.cuh", "backward_kernel<64, Window, false, FirstKeysFirst, false>")), "");
  EXPECT_EQ(complaints(instance("backward.cuh", "backward_end<64, Window>")), "");
}

TEST_F(AttentionUnderNvrtc, CompileOverLatentsAndCodes) {
  EXPECT_EQ(complaints(instance("mla.cuh", "mla_kernel<MlaSchedule::one_softmax, false, FixedSplits>")), "");
  EXPECT_EQ(complaints(instance("mla.cuh", "mla_kernel<MlaSchedule::seesaw, false, ListedSplits>")), "");
  for (const char* const codes : {"ShiftedCodes", "SubnormalCodes"})
    EXPECT_EQ(complaints(instance("decode_narrow.cuh",
                                  std::string{"narrow_decode_kernel<1, Int4Cache<"} + codes + ">, ListedSplits, float>")),
              "");
  EXPECT_EQ(complaints(instance("decode_narrow.cuh", "narrow_decode_kernel<8, E4m3Cache, ListedSplits, bf16>")), "");
  EXPECT_EQ(complaints(instance("decode_wgmma.cuh", "page_decode_kernel<1, bf16>")), "");
}

// As a pair that takes mask and score as text would write them.
TEST_F(AttentionUnderNvrtc, TakeAMaskAndAScoreThatAreText) {
  const std::string functors = R"(#include "attention/forward.cuh"
using namespace aisp::attention;
struct Visible {
  const int* document;
  __device__ bool operator()(int, int, int row, int key) const { return document[row] == document[key]; }
};
struct Score {
  float scale;
  static constexpr bool changes = true;
  __device__ float exponent_scale() const { return 1; }
  __device__ Score of_head(int, int) const { return *this; }
  __device__ float operator()(float product, const At& at) const { return product * scale - at.distance * at.distance; }
};
)";
  EXPECT_EQ(complaints({functors, "forward_kernel<64, 64, TileList<Visible>, Dense, Score, false, InOrder>"}), "");
  EXPECT_NE(complaints({functors, "forward_kernel<64, 64, TileList<Score>, Dense, Score, false, InOrder>"}), "");
}

}  // namespace
}  // namespace aisp
