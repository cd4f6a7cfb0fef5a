// SPDX-License-Identifier: Apache-2.0
// Every seed once, and every seed cut short and with bytes changed, always the same ones: what a fuzzer found must not come back,
// with any compiler. A finding aborts.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/system/files.hpp"
#include "fuzz/readers.hpp"
#include "places.hpp"

namespace aisp::fuzz {
namespace {

class Seeds : public testing::TestWithParam<Reader> {};

std::string changed(std::string text, std::uint64_t number) {
  constexpr char bytes[] = {'\0', '"', '[', '{', '9', '-', ',', '\n', '\\', '\xff', 'e', '='};
  for (int change = 0; change < 3 && !text.empty(); ++change) {
    number = number * 6364136223846793005u + 1442695040888963407u;
    text[(number >> 33) % text.size()] = bytes[(number >> 20) % sizeof bytes];
  }
  return text;
}

TEST_P(Seeds, EndInAResultOrInOneClearLine) {
  int taken = 0, refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator{source_folder() / "tests/fuzz/seeds" / GetParam().name}) {
    SCOPED_TRACE(entry.path().string());
    const std::string text = base::read_file(entry.path());
    const bool good = entry.path().filename().string().starts_with("good");
    const bool was_taken = feed(GetParam(), text);
    if (GetParam().name != "protocol") {
      EXPECT_EQ(was_taken, good) << "seeds that are to be taken, and no others, begin with good";
    }
    (was_taken ? taken : refused) += 1;
    const std::size_t step = text.size() / 64 + 1;
    for (std::size_t size = 0; size < text.size(); size += step) feed(GetParam(), std::string_view{text}.substr(0, size));
    for (std::uint64_t number = 0; number < 200; ++number) feed(GetParam(), changed(text, number));
  }
  EXPECT_GT(taken, 0);
  if (GetParam().name != "protocol") {
    EXPECT_GT(refused, 5);
  }
}

INSTANTIATE_TEST_SUITE_P(Readers, Seeds, testing::ValuesIn(readers().begin(), readers().end()),
                         [](const auto& seed) { return std::string{seed.param.name}; });

}  // namespace
}  // namespace aisp::fuzz
