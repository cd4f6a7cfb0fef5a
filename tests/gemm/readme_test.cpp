// SPDX-License-Identifier: Apache-2.0
// The example that the engine's README shows is the one that a test compiles and runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

namespace aisp {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file{std::string{AISP_SOURCE_DIR} + "/" + path};
  return {std::istreambuf_iterator<char>{file}, {}};
}

TEST(GemmReadme, ShowsCodeThatCompiles) {
  const std::string page = text_of("chapters/shared/gemm/README.md"), fence = "```cpp\n";
  const std::size_t begin = page.find(fence) + fence.size(), end = page.find("```", begin);
  ASSERT_LT(end, page.size());
  EXPECT_THAT(text_of("tests/gemm/example_gpu_test.cu"), testing::HasSubstr(page.substr(begin, end - begin)));
}

}  // namespace
}  // namespace aisp
