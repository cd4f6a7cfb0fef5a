// SPDX-License-Identifier: Apache-2.0
#include <aisp/libraries/nvjitlink.hpp>
#include <aisp/libraries/nvrtc.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/files.hpp"

namespace aisp {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using From = CompiledCode::From;

const KernelSource square{.name = "square.cu", .text = R"(extern "C" __device__ float term(float x) { return x * x; })"};

class NvJitLinkTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const Library library : {Library::nvrtc, Library::nvjitlink})
      if (!SharedLibrary::available(library)) GTEST_SKIP() << name_of(library) << " is not installed";
  }
  static LinkInput prebuilt() { return {LinkInput::Kind::fatbin, "sums.cu", prebuilt_kernels("ch90/lto/sums.cu")}; }

  base::ScratchDirectory cache_;
};

TEST_F(NvJitLinkTest, InlinesAcrossTheBorderFromLtoIr) {
  for (const int sm : {80, 90, 120}) {
    const CompiledCode callback = Nvrtc{sm, {}}.lto_ir(square);
    const CompiledCode code = NvJitLink{sm, {}}.link(
        "sum_kernel", {prebuilt(), {LinkInput::Kind::lto_ir, "square.cu", callback.bytes}}, LinkMode::optimized);
    EXPECT_THAT(code.bytes, StartsWith("\x7f"
                                       "ELF"));
    EXPECT_THAT(code.bytes, HasSubstr("sum_kernel"));
    EXPECT_THAT(code.bytes, Not(HasSubstr(".text.term"))) << "the function is part of the kernel";
    EXPECT_EQ(code.symbol, "sum_kernel");
    EXPECT_GT(code.compile_ms, 0);
  }
}

TEST_F(NvJitLinkTest, CallsWhatIsLinkedAsMachineCode) {
  for (const int sm : {80, 90, 120}) {
    const CompiledCode callback = Nvrtc{sm, {}}.relocatable(square);
    const CompiledCode code = NvJitLink{sm, {}}.link(
        "sum_kernel", {prebuilt(), {LinkInput::Kind::cubin, "square.cu", callback.bytes}}, LinkMode::machine_code);
    EXPECT_THAT(code.bytes, HasSubstr(".text.term"));
  }
}

TEST_F(NvJitLinkTest, WhatIsMissingIsNamed) {
  try {
    NvJitLink{90, {}}.link("sum_kernel", {prebuilt()}, LinkMode::optimized);
    FAIL() << "there is no function to sum up";
  } catch (const std::runtime_error& error) {
    const std::string text = error.what();
    EXPECT_THAT(text.substr(0, text.find('\n')),
                testing::AllOf(StartsWith("nvJitLink cannot link sum_kernel"), HasSubstr("term")));
  }
}

TEST_F(NvJitLinkTest, WhatIsNoCodeIsRefused) {
  EXPECT_THROW(
      NvJitLink(90, {}).link("k", {{LinkInput::Kind::fatbin, "words", "words that are no code at all"}}, LinkMode::optimized),
      std::runtime_error);
  EXPECT_THROW(prebuilt_kernels("ch90/lto/none.cu"), std::logic_error);
}

TEST_F(NvJitLinkTest, KeepsWhatItLinks) {
  const CompiledCode callback = Nvrtc{90, {}}.lto_ir(square);
  const auto from = [&](LinkMode mode, const std::string& name) {
    return NvJitLink{90, cache_.path()}
        .link("sum_kernel", {prebuilt(), {LinkInput::Kind::lto_ir, name, callback.bytes}}, mode)
        .from;
  };
  EXPECT_EQ(from(LinkMode::optimized, "square.cu"), From::compiled);
  EXPECT_EQ(from(LinkMode::optimized, "square.cu"), From::disk);
}

}  // namespace
}  // namespace aisp
