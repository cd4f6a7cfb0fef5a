// SPDX-License-Identifier: Apache-2.0
#include "base/system/places.hpp"

#include <gtest/gtest.h>

#include "base/system/files.hpp"

namespace aisp::base {
namespace {

TEST(Installation, DataIsFoundFromWhereTheExecutableIs) {
  const ScratchDirectory scratch;
  make_directories(scratch.path() / "moved/share/aisp");
  EXPECT_EQ(installed_data(scratch.path() / "moved/bin/aisp"), scratch.path() / "moved/share/aisp");
}

TEST(Installation, ABuildFolderHasNone) {
  const ScratchDirectory scratch;
  make_directories(scratch.path() / "build/release");
  EXPECT_EQ(installed_data(scratch.path() / "build/release/aisp"), "");
  EXPECT_EQ(script("reset-gpu.sh"), "scripts/reset-gpu.sh");
}

}  // namespace
}  // namespace aisp::base
