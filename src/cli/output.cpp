// SPDX-License-Identifier: Apache-2.0
#include "cli/output.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/screen.hpp"

namespace aisp::cli {
namespace {

// Columns on a terminal: bytes that begin a character.
std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](unsigned char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    throw base::Error{base::Exit::failed, std::string{"cannot write to the standard output: "} + std::strerror(errno)};
}

void print_to(const std::string& where, std::string_view text) {
  if (where == "-") print(text);
  else base::write_output(where, text);
}

void demand_place_for(const std::string& where) {
  if (where != "-") base::demand_writable(where);
}

void note(std::string_view line) {
  const std::string whole = base::on_screen(line) + '\n';
  std::fwrite(whole.data(), 1, whole.size(), stderr);
}

// A cell stays in its line, whatever it holds.
std::string columns(const std::vector<std::vector<std::string>>& given) {
  std::vector<std::vector<std::string>> rows = given;
  for (auto& row : rows)
    for (std::string& cell : row) cell = base::on_screen(cell);
  std::vector<std::size_t> widths;
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (widths.size() <= i) widths.push_back(0);
      widths[i] = std::max(widths[i], display_width(row[i]));
    }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      text += row[i];
      if (i + 1 < row.size()) text.append(widths[i] - display_width(row[i]) + 2, ' ');
    }
    text += '\n';
  }
  return text;
}

}  // namespace aisp::cli
