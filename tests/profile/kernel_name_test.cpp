// SPDX-License-Identifier: Apache-2.0
#include "profile/audit.hpp"

#include <gtest/gtest.h>

namespace aisp::profile {
namespace {

TEST(KernelName, ShortNamesAreWhatTheSourceCallsThem) {
  EXPECT_EQ(short_name("void aisp::ch07::(anonymous namespace)::tiled<float, 64>(float const*, float*)"), "tiled<float, 64>");
  EXPECT_EQ(short_name("aisp::ch07::(anonymous namespace)::transpose_direct(float const*, float*, int)"), "transpose_direct");
  EXPECT_EQ(short_name("void cutlass::Kernel2<cutlass::gemm::Tile<(int)4, 8> >(cutlass::Params)"),
            "Kernel2<cutlass::gemm::Tile<(int)4, 8> >");
  EXPECT_EQ(short_name("nvjet_sm90_tst_128x256"), "nvjet_sm90_tst_128x256");
  EXPECT_EQ(short_name(""), "");
}

TEST(KernelName, WhatIsNotMangledStays) {
  EXPECT_EQ(demangled("sm90_xmma_gemm"), "sm90_xmma_gemm");
  EXPECT_EQ(demangled("_Z17aisp_sample_beginv"), "aisp_sample_begin()");
}

}  // namespace
}  // namespace aisp::profile
