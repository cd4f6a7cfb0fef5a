// SPDX-License-Identifier: Apache-2.0
#include "cli/output.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.hpp"
#include "base/layout.hpp"
#include "base/system/files.hpp"
#include "base/system/terminal.hpp"
#include "base/text.hpp"

namespace aisp::cli {
namespace {

// The folder of a file that the user names, where it is missing: it is made, and told, because the name may be mistyped.
class NewFolder {
 public:
  explicit NewFolder(const std::filesystem::path& file) : folder_{file.parent_path()} {
    std::error_code ignored;
    if (std::filesystem::exists(folder_, ignored)) folder_.clear();
  }
  void tell() const {
    if (!folder_.empty()) note("aisp: made the folder " + base::one_line(folder_.string()));
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  if (errno == EPIPE) throw ReaderGone{};
  throw base::Error{base::Exit::failed, std::string{"cannot write to the standard output: "} + std::strerror(errno)};
}

void show(std::string_view text) { print(base::for_screen(text, base::screen_of(STDOUT_FILENO))); }

void show_help(std::string_view text) {
  const std::size_t width = base::screen_of(STDOUT_FILENO).width;
  std::string result;
  for (const std::string& line : base::split(text, '\n')) {
    // Behind the names of a flag and the gap after them.
    const std::size_t names = std::min(line.find_first_not_of(' '), line.size());
    const std::size_t gap = std::min(line.find("  ", names), line.size());
    const std::size_t description = std::min(line.find_first_not_of(' ', gap), line.size());
    result += base::join(base::broken(line, width, description < line.size() ? description : names), "\n") + '\n';
  }
  if (!result.empty()) result.pop_back();
  print(result);
}

void print_to(const std::string& where, std::string_view text) {
  if (where == "-") return print(text);
  const NewFolder folder{where};
  base::write_output(where, text);
  folder.tell();
}

void demand_place_for(const std::string& where) {
  if (where == "-") return;
  const NewFolder folder{where};
  base::demand_writable(where);
  folder.tell();
}

void note(std::string_view line) {
  const std::string whole = base::for_screen(base::on_screen(line), base::screen_of(STDERR_FILENO)) + '\n';
  std::fwrite(whole.data(), 1, whole.size(), stderr);
}

std::string columns(const std::vector<std::vector<std::string>>& given) {
  std::vector<std::vector<std::string>> rows = given;
  for (auto& row : rows)
    for (std::string& cell : row) cell = base::on_screen(cell);
  return base::laid_out(rows, base::screen_of(STDOUT_FILENO).width);
}

}  // namespace aisp::cli
