// SPDX-License-Identifier: Apache-2.0
#include "report/html/code_parts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/html/code_tokens.hpp"

namespace aisp::report {
namespace {

using testing::ElementsAre;

constexpr const char* code = R"code(#include <aisp/pair.hpp>
namespace aisp::ch07 {
namespace {
// Not this one.

// Reads { rows }.
template <class T>
__global__ __launch_bounds__(256) void slow_kernel(T* out) { if (out) { out[0] = 1; } }
__device__ int twice(int x) { return 2 * x; }
__global__ void fast_kernel(int* out) { out[0] = twice(1); }
class Thing final : public Workload {
 public:
  explicit Thing(Setup& setup) : a_{setup.a()}, b_{1} {}
  // Launches.
  void slow(Launch& launch) { slow_kernel<<<1, 1>>>(out_); check(0); }
  void fast(Launch&) { fast_kernel<<<1, 1>>>(out_); }
  template <int n>
  void many(Launch&) { twice(n); }
};
}
extern constinit const Pair thing{
    .baseline = {.name = "slow", .run = call<&Thing::slow>},
    .optimized = variants({{.name = "fast", .run = call<&Thing::fast>}, {.name = "many", .run = call<&Thing::many<3>>}}),
};
}
)code";

std::vector<std::string> names(const std::vector<CodePart>& parts) {
  std::vector<std::string> result;
  for (const CodePart& part : parts) result.push_back(part.name);
  return result;
}

TEST(CodeParts, WhatAVariantIsMadeOf) {
  const std::vector<SourceText> files{{"chapters/ch07/thing.cu", code}};
  EXPECT_THAT(names(parts_of_variant(files, "slow")), ElementsAre("slow_kernel", "slow"));
  EXPECT_THAT(names(parts_of_variant(files, "fast")), ElementsAre("twice", "fast_kernel", "fast"));
  EXPECT_THAT(names(parts_of_variant(files, "many")), ElementsAre("twice", "many"));
  EXPECT_TRUE(parts_of_variant(files, "other").empty());
  const CodePart kernel = parts_of_variant(files, "slow").front();
  EXPECT_TRUE(kernel.is_kernel);
  EXPECT_EQ(kernel.line, 6);
  EXPECT_EQ(kernel.text.rfind("// Reads { rows }.\n", 0), 0u) << kernel.text;
  EXPECT_THAT(names(kernels_of(files[0])), ElementsAre("slow_kernel", "fast_kernel"));
}

constexpr const char* declared_code = R"code(
namespace {
constexpr const char* const_name = "by_constant";
template <int n> __global__ void table_kernel() {}
__global__ void engine_kernel() {}
struct Engine { void run(int stream, const Extra& extra = {}) const { engine_kernel<<<1, 1>>>(); } };
struct Table { Kernel kernel; };
Table table_of() { return {table_kernel<8>}; }
struct Things {
  explicit Things() : buffer_{make({.name = "by_function"})}, table_{table_of()} {}
  void by_constant() { engine_.run(0); }
  template <int n> void by_function() { start(table_.kernel); }
  void by_argument() {}
  Engine engine_;
  Table table_;
};
template <Method run> constexpr Variant of(const char* name) { return {.name = name, .run = run}; }
template <int n> constexpr Variant sized(const char* name) { return {.name = name, .run = call<&Things::by_function<n>>}; }
}
extern const Pair things{.baseline = {.name = const_name, .run = call<&Things::by_constant>},
    .optimized = variants({sized<8>("by_function"), of<call<&Things::by_argument>>("by_argument")})};
)code";

TEST(CodeParts, DeclaredThroughConstantsAndFunctions) {
  const std::vector<SourceText> files{{"chapters/ch07/things.cu", declared_code}};
  EXPECT_THAT(names(parts_of_variant(files, "by_constant")), ElementsAre("engine_kernel", "run", "by_constant"));
  EXPECT_THAT(names(parts_of_variant(files, "by_function")), ElementsAre("table_kernel", "by_function"));
  EXPECT_THAT(names(parts_of_variant(files, "by_argument")), ElementsAre("by_argument"));
}

constexpr const char* steered_code = R"code(
namespace narrow { __global__ void step_kernel() {} void launch() { step_kernel<<<1, 1>>>(); } }
namespace wide { __global__ void step_kernel() {} void launch() { step_kernel<<<2, 2>>>(); } }
struct PingPong { __device__ void work() { alternate(); } };
template <class Schedule> __global__ void gemm_kernel() { Schedule{}.work(); }
template <class Schedule> void multiply() { gemm_kernel<Schedule><<<1, 1>>>(); }
class Thing {
  void few(Launch&) { narrow::launch(); }
  void many(Launch&) { wide::launch(); }
  void pingpong(Launch&) { multiply<PingPong>(); }
};
extern constinit const Pair thing{
    .baseline = {.name = "few", .run = call<&Thing::few>},
    .optimized = variants({{.name = "many", .run = call<&Thing::many>}, {.name = "pingpong", .run = call<&Thing::pingpong>}}),
};
)code";

TEST(CodeParts, NamesAreThoseOfTheirNamespaceAndTemplateArgumentsBringTheirMethods) {
  const std::vector<SourceText> files{{"chapters/ch07/thing.cu", steered_code}};
  const auto lines = [&](const std::string& variant) {
    std::vector<int> result;
    for (const CodePart& part : parts_of_variant(files, variant))
      if (part.name == "launch") result.push_back(part.line);
    return result;
  };
  EXPECT_THAT(lines("few"), ElementsAre(2));
  EXPECT_THAT(lines("many"), ElementsAre(3));
  EXPECT_THAT(names(parts_of_variant(files, "pingpong")), ElementsAre("work", "gemm_kernel", "multiply", "pingpong"));
}

TEST(CodeTokens, CoverTheSourceWhateverItIs) {
  for (const std::string source :
       {code, "\"open", "R\"(open", "/* open", "#define a \\", "'", "{{{", "}}}", "template <", "R\"", "\\"}) {
    std::size_t at = 0;
    for (const Token& token : tokens_of(source)) {
      EXPECT_EQ(token.begin, at);
      EXPECT_GT(token.end, token.begin);
      at = token.end;
    }
    EXPECT_EQ(at, source.size()) << source;
    parts_of_variant({{"x", source}}, "slow");
  }
  EXPECT_EQ(highlighted("int x; // <b>"), "<i class=\"k\">int</i> x; <i class=\"c\">// &lt;b&gt;</i>");
}

}  // namespace
}  // namespace aisp::report
