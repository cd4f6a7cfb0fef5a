// SPDX-License-Identifier: Apache-2.0
// The engine's device headers need no header of the host: NVRTC compiles them, which takes no GPU.
#include <gtest/gtest.h>
#include <nvrtc.h>
#include <aisp/library.hpp>

#include <array>
#include <cstddef>
#include <string>

namespace aisp {
namespace {

// What the headers use of CUDA's and the standard library's, which NVRTC does not have.
constexpr std::array names{"cuda.h", "cuda_bf16.h", "cuda_runtime.h", "cstddef", "cstdint", "type_traits"};
constexpr const char* cuda = "#pragma once\nstruct alignas(128) CUtensorMap { unsigned long opaque[16]; };\n";
constexpr const char* bf16 = R"(#pragma once
struct alignas(2) __nv_bfloat16 { unsigned short bits; };
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
__device__ inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(y), "f"(x));
  return reinterpret_cast<const __nv_bfloat162&>(bits);
}
)";
constexpr const char* integers = R"(#pragma once
namespace std {
using size_t = decltype(sizeof(0));
using int32_t = int;
using uint16_t = unsigned short;
using uint32_t = unsigned;
using uint64_t = unsigned long;
using uintptr_t = unsigned long;
}
)";

// The compiler's complaints about a program; empty when it is content. Only "sm_90a" makes machine code, too, which takes most of
// the time.
std::string complaints(const std::string& source, const std::string& architecture = "compute_90a") {
  const SharedLibrary& library = SharedLibrary::open(Library::nvrtc);
  const std::array texts{cuda, bf16, "#pragma once\n", integers, integers, "#pragma once\n"};
  nvrtcProgram program = nullptr;
  if (library.function<decltype(nvrtcCreateProgram)>("nvrtcCreateProgram")(
          &program, source.c_str(), "attention.cu", static_cast<int>(names.size()), texts.data(), names.data()) != NVRTC_SUCCESS)
    return "no program";
  const std::string include = "-I" AISP_SOURCE_DIR "/include", shared = "-I" AISP_SOURCE_DIR "/chapters/shared",
                    for_architecture = "-arch=" + architecture;
  const std::array options{for_architecture.c_str(), "-std=c++20", "-default-device", include.c_str(), shared.c_str()};
  const nvrtcResult result = library.function<decltype(nvrtcCompileProgram)>("nvrtcCompileProgram")(
      program, static_cast<int>(options.size()), options.data());
  std::size_t size = 0;
  library.function<decltype(nvrtcGetProgramLogSize)>("nvrtcGetProgramLogSize")(program, &size);
  std::string log(size, '\0');
  library.function<decltype(nvrtcGetProgramLog)>("nvrtcGetProgramLog")(program, log.data());
  library.function<decltype(nvrtcDestroyProgram)>("nvrtcDestroyProgram")(&program);
  if (result == NVRTC_SUCCESS) return {};
  return log.empty() ? "no reason given" : log;
}

std::string instance(const std::string& header, const std::string& kernel) {
  return "#include <attention/" + header + ">\nusing namespace aisp::attention;\n__device__ auto* instance = &" + kernel + ";\n";
}

TEST(AttentionHeaders, CompileUnderNvrtc) {
  EXPECT_EQ(complaints(instance("forward.cuh", "forward_kernel<128, 128, NoMask, Dense, Scaled, false, InOrder>"), "sm_90a"), "");
  EXPECT_EQ(complaints(instance("forward.cuh", "forward_kernel<64, 64, Window, Varlen, Alibi, true, Listed>")), "");
  EXPECT_EQ(
      complaints(instance("forward.cuh", "forward_kernel<192, 128, Ascending<Causal>, Paged<16>, Softcap, true, LongestFirst>")),
      "");
  EXPECT_EQ(complaints(instance("varlen.cuh", "list_row_blocks<Causal, Varlen>")), "");
  EXPECT_EQ(complaints(instance("decode.cuh", "decode_kernel<128, 4, 1, PagedCache<16>, ListedSplits, float>")), "");
  EXPECT_EQ(complaints(instance("merge.cuh", "merge_states<128, FixedSplits, float, bf16>")), "");
  EXPECT_EQ(complaints(instance("backward.cuh", "backward_kernel<128, Causal, true>")), "");
}

// As a pair that takes mask and score as text would write them.
TEST(AttentionHeaders, TakeAMaskAndAScoreThatAreText) {
  const std::string functors = R"(#include <attention/forward.cuh>
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
  EXPECT_EQ(complaints(functors +
                       "__device__ auto* instance = &forward_kernel<64, 64, TileList<Visible>, Dense, Score, false, InOrder>;"),
            "");
  EXPECT_NE(complaints(functors +
                       "__device__ auto* instance = &forward_kernel<64, 64, TileList<Score>, Dense, Score, false, InOrder>;"),
            "");
}

}  // namespace
}  // namespace aisp
