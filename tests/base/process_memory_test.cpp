// SPDX-License-Identifier: Apache-2.0
#include "base/system/process_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "sanitized.hpp"

namespace aisp::base {
namespace {

constexpr std::size_t block_bytes = std::size_t{64} << 20;

void touch_a_block() {
  const auto block = std::make_unique<volatile char[]>(block_bytes);
  for (std::size_t i = 0; i < block_bytes; i += 4096) block[i] = 1;
}

TEST(ResidentMemory, PeakKeepsWhatWasFreed) {
  touch_a_block();
  EXPECT_GE(peak_resident_bytes(), block_bytes);
}

TEST(ResidentMemory, AResetForgetsIt) {
  if (under_address_sanitizer) GTEST_SKIP() << "the address sanitizer keeps what is freed";
  touch_a_block();
  const std::uint64_t before = peak_resident_bytes();
  if (!reset_peak_resident()) GTEST_SKIP() << "this kernel does not reset the peak";
  EXPECT_LT(peak_resident_bytes(), before - block_bytes / 2);
  touch_a_block();
  EXPECT_GT(peak_resident_bytes(), before - block_bytes / 2);
}

}  // namespace
}  // namespace aisp::base
