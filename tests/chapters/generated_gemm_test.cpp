// SPDX-License-Identifier: Apache-2.0
// Sources that chapter 14's autotuned_gemm and fp8_quantize_gemm give to NVRTC. It needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/system/files.hpp"
#include "ch14/fp8_glue_code.hpp"
#include "ch14/gemm_candidates.hpp"
#include "engine_headers.hpp"
#include "places.hpp"

namespace aisp::ch14 {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

const gemm::Shape& candidate(int tile_n, bool pingpong, int cluster) {
  return *std::ranges::find_if(candidates, [&](const gemm::Shape& shape) {
    return shape.tile_n == tile_n && shape.pingpong == pingpong && shape.cluster == cluster;
  });
}

TEST(Candidates, AreAllDifferentAndFitIntoSharedMemory) {
  std::set<std::string> texts;
  for (const gemm::Shape& shape : candidates) {
    const std::string text = gemm::text_of(shape);
    EXPECT_TRUE(texts.insert(text).second) << text;
    EXPECT_GE(shape.stages, 4) << text;
    const int bytes = shape.stages * (shape.tile_m + shape.tile_n) * 128 + staging_bytes(shape.tile_n);
    EXPECT_LE(bytes, 226 * 1024) << text;
    EXPECT_TRUE(shape.stages == 8 || bytes + (shape.tile_m + shape.tile_n) * 128 > 226 * 1024) << text;
  }
}

TEST(Candidates, AreWrittenAsCppHasThem) {
  EXPECT_EQ(gemm::text_of(candidate(240, false, 2)),
            "Shape{.tile_m = 128, .tile_n = 240, .stages = 4, .consumers = 2, .pingpong = false, .cluster = 2}");
}

// 1024 x 5120 in tiles of 128 x 160 is 256 tiles, in tiles of 128 x 128 320 tiles, each two or three waves of 132.
TEST(WaveEfficiency, IsWhatIsWantedOfWholeWaves) {
  EXPECT_DOUBLE_EQ(wave_efficiency(candidate(160, false, 1), 1024, 5120, 132), 256.0 / 264);
  EXPECT_DOUBLE_EQ(wave_efficiency(candidate(128, false, 1), 1024, 5120, 132), 320.0 / 396);
  EXPECT_DOUBLE_EQ(wave_efficiency(candidate(160, false, 2), 1024, 5120, 132), 256.0 / 264);
  EXPECT_DOUBLE_EQ(wave_efficiency(candidate(128, false, 1), 1, 8, 132), 8.0 / (132 * 128 * 128)) << "tiles reach beyond C";
}

class GeneratedGemm : public testing::Test {
 protected:
  void SetUp() override {
    if (!SharedLibrary::available(Library::nvrtc)) GTEST_SKIP() << "NVRTC is not installed";
  }

  static std::string chapters(const std::string& path) { return base::read_file(source_folder() / "chapters" / path); }
  // Machine code without a warning, spilled registers among them; gives the PTX.
  static std::string clean(KernelSource source, std::vector<NamedText> headers) {
    SCOPED_TRACE(source.kernel + "\n" + source.text);
    source.options = {"--ptxas-options=--warn-on-spills"};
    source.headers = std::move(headers);
    const Nvrtc nvrtc{90, {}};
    EXPECT_THAT(nvrtc.cubin(source).log, IsEmpty());
    return nvrtc.ptx(source).bytes;
  }
};

// The narrowest, one that no library has, and the ping-pong; the others differ in numbers alone.
TEST_F(GeneratedGemm, CandidatesCompile) {
  for (const gemm::Shape& shape : {candidate(96, false, 1), candidate(240, false, 2), candidate(128, true, 2)})
    EXPECT_THAT(clean(tuned_source(shape), engine_headers("gemm")),
                HasSubstr("wgmma.mma_async.sync.aligned.m64n" + std::to_string(shape.tile_n) + "k16.f32.bf16.bf16"));
}

TEST_F(GeneratedGemm, EveryActivationGoesIntoTheEpilogue) {
  for (const Activation& activation : activations)
    EXPECT_THAT(clean(spliced_gemm_source(activation.text, "Promoted", fp8_shapes[0]), engine_headers("gemm")),
                HasSubstr("cvt.rn.satfinite.e4m3x2.f32"));
}

TEST_F(GeneratedGemm, TheEpilogueGoesIntoEveryShape) {
  for (const gemm::Shape& shape : fp8_shapes)
    for (const char* mainloop : {"Promoted", "InTensorCores"})
      clean(spliced_gemm_source(activations[0].text, mainloop, shape), engine_headers("gemm"));
}

TEST_F(GeneratedGemm, ProloguesOfAnyWidthCompile) {
  EXPECT_EQ(prologue_threads(4096), 256u);
  EXPECT_EQ(prologue_threads(5120), 224u) << "three packets each";
  EXPECT_EQ(prologue_threads(16), 32u);
  for (const std::size_t columns : {16, 4096, 5136, 16384})
    EXPECT_THAT(clean(prologue_source(columns, "x * inverse_rms * gain"),
                      {{"ch14/fp8_glue.cuh", chapters("ch14/fp8_glue.cuh")}, {"rows.cuh", chapters("shared/rows.cuh")}}),
                HasSubstr("cvt.rn.satfinite.e4m3x2.f32"));
}

}  // namespace
}  // namespace aisp::ch14
