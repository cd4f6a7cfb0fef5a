// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace aisp::cli {

// A document to the standard output, at once and as it is. Throws base::Error when nobody takes it (full disk, closed pipe).
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
