// SPDX-License-Identifier: Apache-2.0
#include "run/child/verification/memory_account.hpp"

#include <gmock/gmock.h>

namespace aisp::run {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t mib_of_account = 1 << 20;

evidence::MemoryUse use_of(std::uint64_t buffers_mib, std::uint64_t driver_mib) {
  return {.device_peak_bytes = buffers_mib * mib_of_account,
          .device_allocated_bytes = buffers_mib * mib_of_account,
          .device_reserved_bytes = buffers_mib * mib_of_account,
          .device_driver_bytes = driver_mib * mib_of_account};
}

TEST(MemoryAccount, AgreesWithTheDriverUpToItsPagesAndCode) {
  EXPECT_EQ(disagreement(use_of(1000, 1000), 3), "");
  EXPECT_EQ(disagreement(use_of(1000, 1030), 3), "") << "pages of 2 MiB, and code";
  EXPECT_EQ(disagreement(use_of(1000, 970), 3), "");
}

TEST(MemoryAccount, SaysWhatWasAllocatedBesideTheBuffers) {
  EXPECT_THAT(disagreement(use_of(1000, 1300), 3), HasSubstr("300 MiB were allocated beside them"));
  EXPECT_THAT(disagreement(use_of(1000, 500), 3), HasSubstr("the buffers alone hold"));
}

TEST(MemoryAccount, WhatARunAllocatesAndFreesIsPartOfItsPeak) {
  evidence::MemoryUse use = use_of(100, 100);
  add_own_allocations(use, 30 * mib_of_account);
  EXPECT_EQ(use.device_peak_bytes, 130 * mib_of_account);
  EXPECT_EQ(use.device_reserved_bytes, 130 * mib_of_account);
  EXPECT_EQ(use.device_allocated_bytes, 100 * mib_of_account);
  // Memory from a pool was in the peak before.
  use.device_peak_bytes = use.device_reserved_bytes = 200 * mib_of_account;
  add_own_allocations(use, 100 * mib_of_account);
  EXPECT_EQ(use.device_peak_bytes, 200 * mib_of_account);
}

}  // namespace
}  // namespace aisp::run
