// SPDX-License-Identifier: Apache-2.0
#include "base/system/crash_trace.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace aisp::base {
namespace {

using testing::HasSubstr;

[[gnu::noinline]] void crash_by_signal(int number) {
  raise(number);
  asm volatile("");  // or it would be a jump, which leaves no frame
}

[[gnu::noinline]] int deeper(int depth) {
  if (depth < 0) return 0;
  volatile char waste[4096];
  waste[0] = static_cast<char>(depth);
  return deeper(depth + 1) + waste[0];
}

struct Death {
  int signal = 0;
  std::vector<std::string> frames{};
};

template <class Work>
Death death_of(Work&& work) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    trace_crashes(ends[1]);
    work();
    _exit(0);
  }
  close(ends[1]);
  std::string text(65536, '\0');
  std::size_t length = 0;
  for (ssize_t got = 1; got > 0; length += static_cast<std::size_t>(std::max<ssize_t>(got, 0)))
    got = read(ends[0], text.data() + length, text.size() - length);
  text.resize(length);
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  Death death{.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0};
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_object())
    for (const auto& place : json["crash"]) death.frames.push_back(frame_text(place.get<std::string>()));
  return death;
}

TEST(CrashTrace, NamesTheFunctionsOfEachSignal) {
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    const Death death = death_of([&] { crash_by_signal(number); });
    EXPECT_EQ(death.signal, number);
    EXPECT_THAT(death.frames, testing::Contains(HasSubstr("crash_by_signal(int) + 0x"))) << number;
  }
}

TEST(CrashTrace, TheFirstFrameIsWhereItCrashed) {
  const Death death = death_of([] { *static_cast<volatile int*>(nullptr) = 1; });
  EXPECT_EQ(death.signal, SIGSEGV);
  ASSERT_FALSE(death.frames.empty());
  EXPECT_THAT(death.frames.front(), HasSubstr("CrashTrace_TheFirstFrameIsWhereItCrashed_Test"));
}

TEST(CrashTrace, AStackThatOverflowed) {
  const Death death = death_of([] { _exit(deeper(0)); });
  EXPECT_EQ(death.signal, SIGSEGV);
  ASSERT_FALSE(death.frames.empty());
  EXPECT_THAT(death.frames.front(), HasSubstr("deeper(int)"));
}

TEST(CrashTrace, NothingIsWrittenWithoutACrash) {
  const Death none = death_of([] {});
  EXPECT_EQ(none.signal, 0);
  EXPECT_TRUE(none.frames.empty());
}

TEST(FrameText, WhatCannotBeReadStaysAsItIs) {
  EXPECT_EQ(frame_text("/no/such/file+0x1c"), "/no/such/file+0x1c");
  EXPECT_EQ(frame_text("nonsense"), "nonsense");
  EXPECT_EQ(frame_text("/etc/passwd+0x10"), "passwd + 0x10");
  EXPECT_EQ(frame_text("/proc/self/exe+0xffffffffff"), "exe + 0xffffffffff");
}

}  // namespace
}  // namespace aisp::base
