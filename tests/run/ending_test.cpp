// SPDX-License-Identifier: Apache-2.0
#include "run/parent/ending.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace aisp::run {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

Ending killed() {
  Ending ending;
  ending.stages = {{.stage = evidence::Stage::verify}};
  ending.exit = {.signalled = true, .code = SIGKILL, .peak_rss_bytes = std::uint64_t{8} << 20, .user_s = 3, .system_s = 2};
  return ending;
}

TEST(Kill, IsOfMemoryWhereTheKernelKilledForIt) {
  Ending ending = killed();
  EXPECT_EQ(describe(ending).reason, "killed from outside in verify (it held up to 8 MiB)");
  ending.killed_for_memory = true;
  EXPECT_EQ(describe(ending).reason, "killed in verify, probably out of memory (it held up to 8 MiB)");
}

TEST(Kill, IsOfTheLimitOnCpuTimeWhereThatWasUsedUp) {
  const pid_t child = ::fork();  // a lowered limit stays lowered
  if (child == 0) {
    const rlimit limit{100, 100};
    ::setrlimit(RLIMIT_CPU, &limit);
    Ending ending = killed();
    const bool too_early = describe(ending).reason.find("CPU time") != std::string::npos;
    ending.exit.user_s = 98;
    const bool told = describe(ending).reason == "killed in verify at the limit on CPU time, after 100 s of it";
    ::_exit(told && !too_early ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Signals, ThatLimitsSendNameTheLimit) {
  Ending ending = killed();
  for (const auto& [signal, limit] : {std::pair{SIGXCPU, "ulimit -t"}, std::pair{SIGXFSZ, "ulimit -f"}}) {
    ending.exit.code = signal;
    EXPECT_THAT(describe(ending).reason, testing::AllOf(StartsWith("crashed in verify (SIGX"), HasSubstr(limit)));
  }
}

}  // namespace
}  // namespace aisp::run
