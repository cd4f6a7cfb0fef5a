// SPDX-License-Identifier: Apache-2.0
#include "pair/running_variant.hpp"

#include <gtest/gtest.h>

#include "base/system/process.hpp"

namespace aisp::pair {
namespace {

TEST(RunningVariant, IsNotedForAsLongAsItRuns) {
  EXPECT_EQ(running_variant(), "");
  {
    const RunningVariant running{"tiled"};
    EXPECT_EQ(running_variant(), "tiled");
    note_running_variant("a");
    EXPECT_EQ(running_variant(), "a");
  }
  EXPECT_EQ(running_variant(), "");
  note_running_variant(std::string(1000, 'x'));
  EXPECT_EQ(running_variant().size(), running_variant_bytes - 1);
  note_running_variant({});
}

TEST(RunningVariant, AnotherProcessFindsThePageByItsPath) {
  const RunningVariantPage page;
  ASSERT_NE(page.path(), "");
  EXPECT_EQ(page.name(), "");
  base::Child child{{.argv = {"/bin/sh", "-c", "printf 'tiled' 1<>" + page.path()}}};
  EXPECT_TRUE(child.wait().good());
  EXPECT_EQ(page.name(), "tiled");
}

TEST(RunningVariant, APageThatIsNotThereCostsNothing) {
  EXPECT_FALSE(share_running_variant("/proc/1/nowhere"));
  const RunningVariant running{"tiled"};
  EXPECT_EQ(running_variant(), "tiled");
}

}  // namespace
}  // namespace aisp::pair
