// SPDX-License-Identifier: Apache-2.0
#include "base/system/on_threads.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <vector>

namespace aisp::base {
namespace {

std::ptrdiff_t threads_listed() {
  const std::filesystem::directory_iterator tasks{"/proc/self/task"};
  return std::distance(begin(tasks), end(tasks));
}

TEST(OnThreads, EachPartOnceAndNoThreadIsLeftBehind) {
  const std::ptrdiff_t before = threads_listed();
  for (int repeat = 0; repeat < 2000; ++repeat) {
    std::vector<std::atomic<int>> calls(4);
    on_threads(calls.size(), [&](std::size_t part) { ++calls[part]; });
    for (const std::atomic<int>& count : calls) ASSERT_EQ(count, 1);
    ASSERT_EQ(threads_listed(), before) << "after " << repeat << " calls";
  }
}

TEST(OnThreads, ExceptionsReachTheCallerWhenAllHaveEnded) {
  for (const std::size_t thrower : {0u, 2u}) {
    std::atomic<int> ended = 0;
    const auto work = [&](std::size_t part) {
      if (part == thrower) throw std::runtime_error{"part"};
      ++ended;
    };
    EXPECT_THROW(on_threads(3, work), std::runtime_error);
    EXPECT_EQ(ended, 2);
  }
}

TEST(OnThreads, NoPartsNoCalls) {
  on_threads(0, [](std::size_t) { FAIL(); });
}

}  // namespace
}  // namespace aisp::base
