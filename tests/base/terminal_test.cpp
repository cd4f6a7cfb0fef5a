// SPDX-License-Identifier: Apache-2.0
#include "base/system/terminal.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace aisp::base {
namespace {

class Terminal : public testing::Test {
 protected:
  Terminal() {
    ::setenv("TERM", "xterm", 1);
    ::unsetenv("NO_COLOR");
    ::unsetenv("COLUMNS");
    master_ = ::posix_openpt(O_RDWR | O_NOCTTY);
    if (master_ >= 0 && ::grantpt(master_) == 0 && ::unlockpt(master_) == 0)
      terminal_ = ::open(::ptsname(master_), O_RDWR | O_NOCTTY);
    null_ = ::open("/dev/null", O_RDWR);
  }
  ~Terminal() override {
    ::close(master_);
    ::close(terminal_);
    ::close(null_);
  }
  void SetUp() override {
    if (terminal_ < 0) GTEST_SKIP() << "no pseudo terminals here";
  }

  int master_ = -1, terminal_ = -1, null_ = -1;
};

TEST_F(Terminal, IsTellableFromAFile) {
  EXPECT_TRUE(is_terminal(terminal_));
  EXPECT_FALSE(is_terminal(null_));
}

TEST_F(Terminal, IsRedrawnOnlyWhereItUnderstands) {
  EXPECT_TRUE(can_redraw(terminal_));
  EXPECT_FALSE(can_redraw(null_));
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(can_redraw(terminal_));
  ::unsetenv("TERM");
  EXPECT_FALSE(can_redraw(terminal_));
}

TEST(OnScreen, KeepsOurColoursAndNoOtherControls) {
  EXPECT_EQ(on_screen("a\tb\nc\x7f"
                      "d\x1b[2Je"),
            "a b c d [2Je");
  EXPECT_EQ(on_screen(Painter{true}(Style::red, "x\x1b[8my")), "\x1b[31mx [8my\x1b[0m");
  EXPECT_EQ(on_screen("\x1b\x1b[31m"), " \x1b[31m");
  EXPECT_EQ(on_screen("µs \xC2\x9Bz \xC2"), "µs  z \xC2") << "U+009B begins a sequence as ESC [ does";
  EXPECT_EQ(on_screen("a\u202Eb\u2066c\u2028d\u200Fe\u061Cf"), "a b c d e f") << "they turn text around, or begin a line";
  EXPECT_EQ(on_screen("–“…→\u2027\u202F\u2065\xE2\x80"), "–“…→\u2027\u202F\u2065\xE2\x80");
  EXPECT_EQ(on_screen(""), "");
}

TEST_F(Terminal, WidthComesFromTheTerminalUnlessStated) {
  const winsize size{.ws_row = 24, .ws_col = 132, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(::ioctl(master_, TIOCSWINSZ, &size), 0);
  EXPECT_EQ(terminal_width(terminal_), 132);
  EXPECT_EQ(terminal_width(null_, 77), 77);
  ::setenv("COLUMNS", "90", 1);
  EXPECT_EQ(terminal_width(terminal_), 90);
  ::setenv("COLUMNS", "rubbish", 1);
  EXPECT_EQ(terminal_width(terminal_), 132);
}

TEST_F(Terminal, ColoursOnlyWhereTheyAreWanted) {
  EXPECT_TRUE(use_color(Color::automatic, terminal_));
  EXPECT_FALSE(use_color(Color::automatic, null_));
  EXPECT_TRUE(use_color(Color::always, null_));
  EXPECT_FALSE(use_color(Color::never, terminal_));
  ::setenv("NO_COLOR", "", 1);
  EXPECT_TRUE(use_color(Color::automatic, terminal_)) << "an empty NO_COLOR says nothing";
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(use_color(Color::automatic, terminal_));
  EXPECT_TRUE(use_color(Color::always, terminal_)) << "the flag wins over the environment";
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(use_color(Color::automatic, terminal_));
}

TEST(Painter, AddsNothingWhenOff) {
  EXPECT_EQ(Painter{false}(Style::red, "bad"), "bad");
  EXPECT_EQ(Painter{true}(Style::red, "bad"), "\x1b[31mbad\x1b[0m");
  EXPECT_EQ(Painter{true}(Style::red, ""), "");
}

TEST(Color, IsParsed) {
  EXPECT_EQ(parse_color("auto"), Color::automatic);
  EXPECT_EQ(parse_color("always"), Color::always);
  EXPECT_EQ(parse_color("never"), Color::never);
  EXPECT_EQ(parse_color("pink"), std::nullopt);
}

}  // namespace
}  // namespace aisp::base
