// SPDX-License-Identifier: Apache-2.0
// The generator of chapter 14's nvrtc_fusion.
#include "ch14/expression.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <aisp/libraries/nvrtc.hpp>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "base/system/files.hpp"
#include "ch14/fusion_code.hpp"
#include "places.hpp"

namespace aisp::ch14 {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::uint32_t graphs = 20;
constexpr int block = 5;

TEST(Chain, StartsWithABlockOfAModel) {
  EXPECT_EQ(formula(chain(block)), "gelu(x * scale + bias) * gate + residual");
  EXPECT_EQ(formula(chain(1)), "x * scale");
  EXPECT_EQ(formula(chain(6)), "(gelu(x * scale + bias) * gate + residual) * scale");
  for (const int operations : {1, 2, 4, 8, 16, 32, 64}) EXPECT_EQ(operations_in(chain(operations)), operations);
}

TEST(Chain, UsesOperandsOnce) {
  EXPECT_EQ(tensors_in(chain(2)), 1);
  EXPECT_EQ(tensors_in(chain(4)), 2);
  EXPECT_EQ(tensors_in(chain(64)), 3);
  EXPECT_EQ(chain(64).size(), 64u + 5u) << "each of the five operands is one node";
}

TEST(RandomExpression, IsInOrderAndReadsColumnsSecond) {
  for (std::uint32_t seed = 1; seed <= graphs; ++seed) {
    SCOPED_TRACE(seed);
    const Expression nodes = random_expression(seed);
    EXPECT_FALSE(is_leaf(nodes.back().op));
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (is_leaf(nodes[i].op)) continue;
      EXPECT_LT(nodes[i].a, static_cast<int>(i));
      EXPECT_NE(nodes[static_cast<std::size_t>(nodes[i].a)].op, Op::column);
      if (is_binary(nodes[i].op)) {
        EXPECT_LT(nodes[i].b, static_cast<int>(i));
      }
    }
  }
}

TEST(Evaluate, FollowsTheFormula) {
  const auto leaf = [](Op op, int which) -> double {
    return op == Op::tensor ? std::array{0.75, 2.0, -0.5}.at(static_cast<std::size_t>(which)) : which == 0 ? 1.5 : 0.25;
  };
  const double z = 0.75 * 1.5 + 0.25;
  const double gelu = 0.5 * z * (1 + std::tanh(0.7978845608028654 * (z + 0.044715 * z * z * z)));
  EXPECT_NEAR(evaluate(chain(block), leaf), gelu * 2 - 0.5, 1e-12);
}

// Every value is where it was put for as long as somebody reads it.
TEST(Slots, AreNotTakenWhileTheyAreRead) {
  for (std::uint32_t seed = 1; seed <= graphs; ++seed) {
    SCOPED_TRACE(seed);
    const Expression nodes = random_expression(seed);
    const Slots slots = slots_of(nodes);
    std::vector<int> holds(static_cast<std::size_t>(slots.count), -1);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (is_leaf(nodes[i].op)) continue;
      for (const int of : {nodes[i].a, is_binary(nodes[i].op) ? nodes[i].b : nodes[i].a}) {
        if (is_leaf(nodes[static_cast<std::size_t>(of)].op)) continue;
        EXPECT_EQ(holds.at(static_cast<std::size_t>(slots.of[static_cast<std::size_t>(of)])), of);
        EXPECT_NE(slots.of[static_cast<std::size_t>(of)], slots.of[i]) << "an operand would be overwritten";
      }
      if (i + 1 < nodes.size()) holds.at(static_cast<std::size_t>(slots.of[i])) = static_cast<int>(i);
    }
    EXPECT_EQ(slots.of.back(), -1);
  }
  EXPECT_EQ(slots_of(chain(64)).count, 2);
  EXPECT_EQ(slots_of(chain(1)).count, 0);
}

TEST(FusionCode, IsWhatSomebodyWouldWrite) {
  EXPECT_EQ(fusion_code(chain(2), 1024), R"(#include "ch14/elementwise.cuh"
using namespace aisp::ch14;

// x * scale + bias
__global__ __launch_bounds__(256) void fused_kernel(
    const uint4* __restrict__ x, const uint4* __restrict__ gate, const uint4* __restrict__ residual,
    const uint4* __restrict__ scale, const uint4* __restrict__ bias, uint4* __restrict__ out, unsigned packets) {
  const unsigned i = blockIdx.x * 256 + threadIdx.x;
  if (i >= packets) return;
  const unsigned column = i % 1024;
  const uint4 x_bits = x[i];
  const uint4 scale_bits = scale[column];
  const uint4 bias_bits = bias[column];
  float x_values[packet];
  unpack(x_bits, x_values);
  float scale_values[packet];
  unpack(scale_bits, scale_values);
  float bias_values[packet];
  unpack(bias_bits, bias_values);
  float result[packet];
#pragma unroll
  for (int k = 0; k < packet; ++k) {
    const float v2 = x_values[k] * scale_values[k];
    const float v4 = v2 + bias_values[k];
    result[k] = v4;
  }
  out[i] = pack(result);
}
)");
}

TEST(FusionCode, ReadsWhatItUses) {
  EXPECT_THAT(fusion_code(chain(3), 8), Not(HasSubstr("gate_bits")));
  EXPECT_THAT(fusion_code(chain(4), 8), HasSubstr("const uint4 gate_bits = gate[i];"));
  EXPECT_THAT(fusion_code({{Op::tensor, 1, 0}, {Op::relu, 0, 0}}, 8), Not(HasSubstr("column")));
}

TEST(FusionCode, Compiles) {
  if (!SharedLibrary::available(Library::nvrtc)) GTEST_SKIP() << "NVRTC is not installed";
  const Nvrtc nvrtc{90, {}};
  const std::filesystem::path chapters = source_folder() / "chapters";
  const std::vector<NamedText> headers{{"ch14/elementwise.cuh", base::read_file(chapters / "ch14/elementwise.cuh")},
                                       {"rows.cuh", base::read_file(chapters / "shared/rows.cuh")}};
  const auto compile = [&](const Expression& nodes) {
    const std::string text = fusion_code(nodes, 125);
    SCOPED_TRACE(text);
    EXPECT_NO_THROW(nvrtc.cubin({.name = "fused.cu", .text = text, .kernel = "fused_kernel", .headers = headers}));
  };
  for (const int operations : {1, 5, 64}) compile(chain(operations));
  for (std::uint32_t seed = 1; seed <= graphs; ++seed) compile(random_expression(seed));
}

}  // namespace
}  // namespace aisp::ch14
