// SPDX-License-Identifier: Apache-2.0
// Products of small integers by CUTLASS: exact in every type on the way, so that the host's own sums must come out.
#include <stdlib.h>
#include <aisp/libraries/cutlass.hpp>
#include <aisp/library.hpp>

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <filesystem>
#include <vector>

#include "gpu_test.hpp"
#include "places.hpp"

namespace aisp {
namespace {

using bf16 = __nv_bfloat16;
using e4m3 = __nv_fp8_e4m3;

// From -3 to 3, without a pattern that a wrong stride would keep.
template <class T>
std::vector<T> integers(int count, unsigned seed) {
  std::vector<T> values;
  values.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values.push_back(T{static_cast<float>(static_cast<int>((seed >> 16) % 7) - 3)});
  }
  return values;
}

class Cutlass : public GpuTest<9, 9> {
 protected:
  void SetUp() override {
    // Next to aisp, where the target aisp_cutlass was built.
    setenv("AISP_LIBRARY_PATH", std::filesystem::path{aisp_path()}.parent_path().c_str(), 0);
    if (!SharedLibrary::available(Library::cutlass)) GTEST_SKIP() << "no libaisp_cutlass.so; " << get_cutlass;
    GpuTest::SetUp();
  }

  using Make = std::unique_ptr<CutlassPlan>(const CutlassProblem&);

  template <class T>
  static void multiply(int m, int n, int k, Make* make_plan, float scale) {
    const bool b_along_k = make_plan == plan_cutlass_fp8;
    const std::vector<T> a = integers<T>(m * k, 1), b = integers<T>(n * k, 2);
    const OnGpu<T> a_there{a}, b_there{b};
    const OnGpu<bf16> c{std::vector<bf16>(static_cast<std::size_t>(m) * static_cast<std::size_t>(n), bf16{-1000.0f})};
    const CutlassProblem problem{.m = m, .n = n, .k = k, .a = a_there.get(), .b = b_there.get(), .c = c.get(), .scale = scale};
    const auto plan = make_plan(problem);
    plan->run(nullptr);
    plan->run(nullptr);
    check(cudaDeviceSynchronize());
    const std::vector<bf16> result = c.host();
    const auto at = [](const std::vector<T>& matrix, int index) {
      return static_cast<float>(matrix[static_cast<std::size_t>(index)]);
    };
    for (int row = 0; row < m; ++row)
      for (int column = 0; column < n; ++column) {
        float sum = 0;
        for (int i = 0; i < k; ++i) sum += at(a, row * k + i) * at(b, b_along_k ? column * k + i : i * n + column);
        ASSERT_EQ(static_cast<float>(result[static_cast<std::size_t>(row * n + column)]), static_cast<float>(bf16{scale * sum}))
            << m << " x " << n << " x " << k << ": row " << row << ", column " << column;
      }
  }
};

TEST_F(Cutlass, MultipliesBf16AlsoWhereTilesAreCutOff) {
  for (Make* const make_plan : {plan_cutlass_bf16, plan_cutlass_multistage}) {
    multiply<bf16>(256, 512, 128, make_plan, 1);
    multiply<bf16>(272, 528, 144, make_plan, 0.5f);
    multiply<bf16>(16, 16, 16, make_plan, 1);
  }
}

TEST_F(Cutlass, MultipliesE4m3AlsoWhereTilesAreCutOff) {
  multiply<e4m3>(256, 512, 256, plan_cutlass_fp8, 1);
  multiply<e4m3>(272, 528, 144, plan_cutlass_fp8, 0.5f);
}

TEST_F(Cutlass, RefusesWhatItCannotRead) {
  const OnGpu<bf16> memory{std::vector<bf16>(4096)};
  for (Make* const make_plan : {plan_cutlass_bf16, plan_cutlass_multistage})
    EXPECT_THROW(make_plan({.m = 16, .n = 16, .k = 17, .a = memory.get(), .b = memory.get(), .c = memory.get()}), Unsupported);
}

}  // namespace
}  // namespace aisp
