// SPDX-License-Identifier: Apache-2.0
#include "run/child/environment.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace aisp::run {
namespace {

class Reproducible : public testing::Test {
 protected:
  ~Reproducible() override {
    for (const char* name : {"CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION"})
      unsetenv(name);
  }
  static std::string workspace() {
    const char* value = std::getenv("CUBLAS_WORKSPACE_CONFIG");
    return value == nullptr ? "" : value;
  }
};

TEST_F(Reproducible, GivesCublasAWorkspaceOfFixedSize) {
  unsetenv("CUBLAS_WORKSPACE_CONFIG");
  demand_deterministic_libraries();
  EXPECT_EQ(workspace(), ":4096:8");
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8", 1);
  demand_deterministic_libraries();
  EXPECT_EQ(workspace(), ":4096:8") << "cuBLAS promises equal bits for two settings only";
  setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8", 1);
  demand_deterministic_libraries();
  EXPECT_EQ(workspace(), ":16:8") << "the user's own, where it is the other of the two";
}

TEST_F(Reproducible, LeavesNoMathModeBehindTheVariantsBack) {
  setenv("NVIDIA_TF32_OVERRIDE", "1", 1);
  setenv("CUBLAS_EMULATE_SINGLE_PRECISION", "1", 1);
  demand_deterministic_libraries();
  EXPECT_EQ(std::getenv("NVIDIA_TF32_OVERRIDE"), nullptr);
  EXPECT_EQ(std::getenv("CUBLAS_EMULATE_SINGLE_PRECISION"), nullptr);
}

}  // namespace
}  // namespace aisp::run
