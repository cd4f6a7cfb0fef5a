// SPDX-License-Identifier: Apache-2.0
#include "machine/doctor/tcgen05.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "machine/doctor/doctor.hpp"
#include "machine/doctor/tcgen05_launch.hpp"
#include "machine/fake_root.hpp"
#include "machine/needs.hpp"

namespace aisp::machine {
namespace {

using testing::HasSubstr;

// A program in place of the assembler, or of the child that probes.
std::filesystem::path script(FakeRoot& root, const std::string& name, const std::string& text) {
  root.file(name, "#!/bin/sh\n" + text);
  const std::filesystem::path path = root.path() / name;
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

TEST(Architectures, MachineCodeRunsOnLaterChipsOfItsGeneration) {
  EXPECT_TRUE(has_code("80-real", 89));
  EXPECT_FALSE(has_code("80-real", 90));
  EXPECT_FALSE(has_code("89-real", 80));
  EXPECT_TRUE(has_code("80", 120)) << "PTX is translated for later chips";
  EXPECT_FALSE(has_code("120-virtual", 100));
}

TEST(Architectures, SpecificCodeRunsOnItsOwnChipAndFamilyCodeOnItsFamily) {
  EXPECT_TRUE(has_code("90a-real", 90));
  EXPECT_FALSE(has_code("100a-real", 103));
  EXPECT_TRUE(has_specific_code("80-real,100f-real", 103));
  EXPECT_FALSE(has_specific_code("100f-real", 110));
  EXPECT_FALSE(has_specific_code("100-real", 100));
}

TEST(Architectures, AListThatTellsNothingHasEverything) {
  for (const char* list : {"", "native", "all-major", "90a-real,native", "90x"}) {
    EXPECT_TRUE(has_code(list, 100)) << list;
    EXPECT_TRUE(has_specific_code(list, 100)) << list;
  }
}

TEST(Tcgen05, TheAssemblerIsAskedForTheTarget) {
  FakeRoot root;
  const auto ptxas = script(root, "bin/ptxas",
                            "[ \"$1 $2\" = '--gpu-name sm_103a' ] && grep -q '^.target sm_103a$' \"$3\" && "
                            "grep -q tcgen05.alloc \"$3\"\n");
  EXPECT_EQ(find_assembler({root.path() / "none", root.path()}), ptxas);
  EXPECT_EQ(find_assembler({root.path() / "none"}), std::nullopt);
  EXPECT_TRUE(assembles_tcgen05(ptxas, "sm_103a"));
  EXPECT_FALSE(assembles_tcgen05(ptxas, "sm_121a"));
}

TEST(Tcgen05, AnAssemblerThatCannotAnswerIsNoRefusal) {
  FakeRoot root;
  EXPECT_THROW(assembles_tcgen05(root.path() / "absent", "sm_103a"), base::Error);
  EXPECT_THROW(assembles_tcgen05(script(root, "bin/hangs", "sleep 60\n"), "sm_103a", 0.2), base::Error);
}

TEST(Tcgen05, TheToolkitKnowsItForTheFirstFamiliesOnly) {
  const auto ptxas = find_assembler(toolkit_homes());
  if (!ptxas) GTEST_SKIP() << "no CUDA toolkit";
  for (const std::string& target : targets_with(Tcgen05::present)) EXPECT_TRUE(assembles_tcgen05(*ptxas, target)) << target;
  for (const std::string& target : targets_with(Tcgen05::lacking_on_blackwell))
    EXPECT_FALSE(assembles_tcgen05(*ptxas, target)) << target;
}

TEST(Tcgen05, AProductIsComparedInEveryElement) {
  using P = Tcgen05Product;
  std::vector<float> c;
  for (int row = 0; row < P::m; ++row)
    for (int column = 0; column < P::n; ++column) {
      int sum = 0;
      for (int depth = 0; depth < P::k; ++depth) sum += P::a(row, depth) * P::b(column, depth);
      c.push_back(static_cast<float>(sum));
    }
  EXPECT_EQ(judge_product(c), "");
  c.back() += 1;
  EXPECT_THAT(judge_product(c), testing::StartsWith("row 127, column 63 is "));
  EXPECT_EQ(judge_product({1}), "the product has 1 of 8192 elements");
}

TEST(Tcgen05, NoChildIsStartedWhereNoGpuCouldRunIt) {
  const auto asked = [](int sm, std::string_view built) {
    return !probe_tcgen05(machine_with({other_gpu("x", sm)}), built, 5, "/nonexistent").error.empty();
  };
  EXPECT_FALSE(asked(90, "90a-real"));
  EXPECT_FALSE(asked(100, "90a-real"));
  EXPECT_FALSE(asked(121, "121a-real"));
  EXPECT_TRUE(asked(100, "100a-real"));
}

TEST(Tcgen05, TheChildsAnswerIsTakenForEachGpu) {
  FakeRoot root;
  const auto child = script(root, "child",
                            "[ \"$1\" = __probe_tcgen05 ] && echo '{\"gpus\": [{\"ordinal\": 0, \"error\": \"\"}, "
                            "{\"ordinal\": 2, \"error\": \"an illegal instruction\"}]}' >&3\n");
  const ProductAnswers answers = probe_tcgen05(machine_with({other_gpu("x", 100)}), "100a-real", 10, child.string());
  EXPECT_EQ(answers.of(0), "");
  EXPECT_EQ(answers.of(1), std::nullopt);
  EXPECT_EQ(answers.of(2), "an illegal instruction");
}

TEST(Tcgen05, AChildThatDiesIsAnAnswerForAll) {
  FakeRoot root;
  const auto child = script(root, "child", "kill -SEGV $$\n");
  const ProductAnswers answers = probe_tcgen05(machine_with({other_gpu("x", 100)}), "100a-real", 10, child.string());
  ASSERT_TRUE(answers.of(0).has_value());
  EXPECT_THAT(*answers.of(0), HasSubstr("SIGSEGV"));
}

}  // namespace
}  // namespace aisp::machine
