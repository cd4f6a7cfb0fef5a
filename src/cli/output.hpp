// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace aisp::cli {

// To the standard output, at once. Throws base::Error when nobody takes it (full disk, closed pipe).
void print(std::string_view text);
// To the file that the user names, or to the standard output for "-".
void print_to(const std::string& where, std::string_view text);
// Throws base::Error where that cannot be done, before the work whose outcome goes there.
void demand_place_for(const std::string& where);
// One line to the standard error; trouble with that is nobody's concern.
void note(std::string_view line);

// Rows with columns as wide as their longest cell, two blanks between them; the last column is not padded.
std::string columns(const std::vector<std::vector<std::string>>& rows);

}  // namespace aisp::cli
