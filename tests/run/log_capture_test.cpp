// SPDX-License-Identifier: Apache-2.0
#include "run/parent/log_capture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "base/system/files.hpp"

namespace aisp::run {
namespace {

using testing::HasSubstr;

TEST(LogCapture, KeepsEverythingBelowTheLimit) {
  const base::ScratchDirectory scratch{"aisp-test-"};
  LogCapture log{scratch.path() / "log", 100};
  log.append(std::string(40, 'a'));
  log.append(std::string(59, 'b'));
  log.close();
  EXPECT_EQ(base::read_file(scratch.path() / "log"), std::string(40, 'a') + std::string(59, 'b'));
  EXPECT_EQ(log.dropped_bytes(), 0u);
}

TEST(LogCapture, DropsTheMiddleAndSaysHowMuch) {
  const base::ScratchDirectory scratch{"aisp-test-"};
  LogCapture log{scratch.path() / "log", 100};
  for (int i = 0; i < 1000; ++i) log.append("0123456789");
  log.append("the end");
  log.close();
  const std::string text = base::read_file(scratch.path() / "log");
  EXPECT_THAT(text, testing::StartsWith("0123456789"));
  EXPECT_THAT(text, testing::EndsWith("the end"));
  EXPECT_THAT(text, HasSubstr("[aisp: 9907 bytes dropped here]"));
  EXPECT_EQ(log.dropped_bytes(), 9907u);
}

TEST(LogCapture, AFileWithASecondNameIsNotEmptied) {
  const base::ScratchDirectory scratch{"aisp-test-"};
  base::write_atomically(scratch.path() / "precious", "mine");
  std::filesystem::create_hard_link(scratch.path() / "precious", scratch.path() / "log");
  LogCapture log{scratch.path() / "log", 100};
  log.append("text");
  log.close();
  EXPECT_EQ(base::read_file(scratch.path() / "precious"), "mine");
  EXPECT_THAT(log.trouble(), HasSubstr("hard link"));
}

TEST(LogCapture, TailIsTheLastLines) {
  LogCapture log{{}, 100};
  log.append("one\ntwo\nthree\n\n");
  EXPECT_EQ(log.tail(2), "two\nthree");
  EXPECT_EQ(log.tail(9), "one\ntwo\nthree");
  EXPECT_EQ(log.tail(9, 4), "hree");
}

TEST(LogCapture, FileThatCannotBeWrittenCostsTheLogOnly) {
  LogCapture device{"/dev/full", 100};
  device.append("text");
  device.close();
  EXPECT_THAT(device.trouble(), HasSubstr("/dev/full"));
  EXPECT_EQ(device.tail(), "text");
  const base::ScratchDirectory scratch{"aisp-test-"};
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit none{0, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &none);
  LogCapture full{scratch.path() / "log", 100};
  full.append("text");
  full.close();
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(full.trouble(), HasSubstr("cut short: File too large"));
  EXPECT_EQ(full.tail(), "text");
  LogCapture nowhere{"/nonexistent/log", 100};
  EXPECT_THAT(nowhere.trouble(), HasSubstr("/nonexistent/log"));
}

}  // namespace
}  // namespace aisp::run
