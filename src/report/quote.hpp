// SPDX-License-Identifier: Apache-2.0
// Text that others wrote, made safe for a format. Bytes that are no UTF-8 become U+FFFD.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace aisp::report {

std::string valid_utf8(std::string_view text);
// A line of CSV as RFC 4180 has it, with its CR LF. An apostrophe comes before what a spreadsheet would take for a formula.
std::string csv_line(const std::vector<std::string>& fields);
// Escapes text for Markdown, inside a line or a table's cell: no tag, code, link or picture begins in it, and no line ends.
// Emphasis stays.
std::string markdown_text(std::string_view text);
// For XML 1.0 text and attributes; characters that it cannot hold become U+FFFD.
std::string xml_escaped(std::string_view text);
// For the message of a GitHub workflow command, and for the value of one of its properties.
std::string github_message(std::string_view text);
std::string github_property(std::string_view text);

}  // namespace aisp::report
