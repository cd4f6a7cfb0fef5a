// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace aisp::cli {

// The reader of the standard output, as head, has closed it and wants no more. That is no error of a listing: the program ends
// without a word, with the status that SIGPIPE would give.
class ReaderGone : public std::exception {
 public:
  static constexpr int status = 141;
  const char* what() const noexcept override { return "cannot write to the standard output: its reader has closed it"; }
};

// A document to the standard output, at once and as it is. Throws ReaderGone, or base::Error where it cannot be written (full
// disk).
void print(std::string_view text);
// Text for people, likewise; on a terminal no line passes its right edge.
void show(std::string_view text);
// Likewise; what does not fit into a line goes on below the description of the flag.
void show_help(std::string_view text);
// To the file that the user names, or to the standard output for "-".
void print_to(const std::string& where, std::string_view text);
// Throws base::Error where that cannot be done, before the work whose outcome goes there.
void demand_place_for(const std::string& where);
// One line for people to the standard error; trouble with that is nobody's concern.
void note(std::string_view line);

// Rows in columns, as wide as the standard output shows them; a cell stays in its row, whatever it holds.
std::string columns(const std::vector<std::vector<std::string>>& rows);

}  // namespace aisp::cli
