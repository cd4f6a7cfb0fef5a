// SPDX-License-Identifier: Apache-2.0
// Text for people, laid out for the terminal that it appears on. In a file or a pipe nothing is laid out: there programs read.
#pragma once
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace aisp::base {

// A descriptor's width, and whether it shows colours and Unicode.
struct Screen {
  static constexpr std::size_t endless = std::numeric_limits<std::size_t>::max();
  std::size_t width = endless;  // in characters; endless where it is no terminal
  bool utf8 = false;            // a terminal whose locale is UTF-8
};
Screen screen_of(int descriptor);

// Columns on a terminal: characters, without what a Painter writes.
std::size_t display_width(std::string_view text);

// As much of the beginning of `text`, which has no colours, as so many columns hold.
std::string first_columns(std::string_view text, std::size_t columns);

// `line` in lines of at most `width` characters, broken at blanks; every line but the first begins with `hang` blanks. A number
// keeps its unit, what stands in brackets or backquotes stays whole, and a word that is too long alone stays as it is: paths are
// copied.
std::vector<std::string> broken(std::string_view line, std::size_t width, std::size_t hang = 0);

// Every line of `text` for this screen: one that is too long loses its padding and is broken where that is not enough; "us"
// behind a number becomes "µs" where it can be shown.
std::string for_screen(std::string_view text, const Screen& screen);

using TableRows = std::vector<std::vector<std::string>>;
// Columns as wide as their longest cell, two blanks between them; the last one is not padded. Where that is wider than `width`
// the last column is broken, or, where too little would be left for it, each row takes several lines, all but the first indented.
std::string laid_out(const TableRows& rows, std::size_t width);

}  // namespace aisp::base
