// SPDX-License-Identifier: Apache-2.0
#include "suite/configuration_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"

namespace aisp::suite {
namespace {

constexpr std::size_t largest_file_bytes = std::size_t{1} << 20;
constexpr std::size_t longest_name = 64;
constexpr std::size_t most_settings = 200;  // more than there are

class Scanner {
 public:
  Scanner(std::string_view text, std::string source) : text_{text}, source_{std::move(source)} {
    if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);
  }

  int line() const { return line_; }
  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return at_end() ? '\n' : text_[at_]; }
  bool at_line_end() const { return peek() == '\n'; }

  [[noreturn]] void fail(const std::string& what) const {
    throw base::Error{base::Exit::usage, fmt::format("{}:{}: {}", source_, line_, what)};
  }

  char take() {
    const char c = peek();
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t' && c != '\r') || byte == 0x7F)
      fail(fmt::format("byte 0x{:02x} is no text; it must be a file of settings, name = value", byte));
    if (!at_end()) ++at_;
    if (c == '\n') ++line_;
    return c;
  }

  void skip_blanks() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\r') take();
  }
  void skip_comment() {
    skip_blanks();
    if (peek() == '#' || peek() == ';')
      while (!at_line_end()) take();
  }
  void skip_blank_lines() {
    for (skip_comment(); at_line_end() && !at_end(); skip_comment()) take();
  }
  void end_line() {
    skip_comment();
    if (!at_line_end())
      fail(fmt::format("unexpected '{}'; one setting a line, name = value", base::one_line(rest_of_line(), 40)));
  }

  // Up to one of `ends`, without blanks around it.
  std::string word(std::string_view ends) {
    std::string word;
    while (!at_line_end() && ends.find(peek()) == std::string_view::npos) word += take();
    return std::string{base::trim(word)};
  }

  std::string string() {
    const char quote = take();
    std::string value;
    while (peek() != quote) {
      if (at_line_end()) fail(fmt::format("a string without its closing {}", quote));
      const char c = take();
      value += c == '\\' && quote == '"' ? escaped() : c;
    }
    take();
    return value;
  }

 private:
  char escaped() {
    const char c = at_line_end() ? '\n' : take();
    if (c == '"' || c == '\\') return c;
    if (c == 't') return '\t';
    fail("only \\\", \\\\ and \\t may follow a backslash; '...' takes everything as it is");
  }
  std::string_view rest_of_line() const { return text_.substr(at_, text_.find('\n', at_) - at_); }

  std::string_view text_;
  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
};

std::string value_of(Scanner& scanner, std::string_view ends) {
  scanner.skip_blanks();
  if (scanner.peek() == '"' || scanner.peek() == '\'') return scanner.string();
  std::string value = scanner.word(ends);
  if (value.empty()) scanner.fail("a value is missing");
  return value;
}

std::vector<std::string> array_of(Scanner& scanner) {
  std::vector<std::string> values;
  scanner.take();
  for (scanner.skip_blank_lines(); scanner.peek() != ']'; scanner.skip_blank_lines()) {
    if (scanner.at_end()) scanner.fail("an array without its closing ]");
    if (scanner.peek() == '[') scanner.fail("an array inside an array");
    values.push_back(value_of(scanner, ",]#;"));
    scanner.skip_blank_lines();
    if (scanner.peek() == ',') scanner.take();
    else if (scanner.peek() != ']') scanner.fail("an array needs ',' between its values and ']' behind them");
  }
  scanner.take();
  return values;
}

std::string name_of(Scanner& scanner) {
  std::string name = scanner.word("=#;");
  const auto fits = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_'; };
  if (name.empty() || name.size() > longest_name || !std::all_of(name.begin(), name.end(), fits))
    scanner.fail(fmt::format("'{}' is no name of a setting; expected name = value", base::one_line(name, 40)));
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

void check_section(Scanner& scanner) {
  scanner.take();
  const std::string section = scanner.word("]");
  if (scanner.peek() != ']') scanner.fail("a section without its closing ]");
  scanner.take();
  if (section != "run")
    scanner.fail(fmt::format("unknown section [{}]; settings stand in [run] or in none", base::one_line(section, 40)));
}

FileSetting setting_of(Scanner& scanner) {
  FileSetting setting{.line = scanner.line()};
  setting.name = name_of(scanner);
  if (scanner.peek() != '=') return setting;
  scanner.take();
  scanner.skip_blanks();
  if (scanner.peek() == '[') setting.values = array_of(scanner);
  else setting.values.push_back(value_of(scanner, "#;"));
  return setting;
}

}  // namespace

std::vector<FileSetting> parse_settings(std::string_view text, const std::string& source) {
  Scanner scanner{text, source};
  std::vector<FileSetting> settings;
  for (scanner.skip_blank_lines(); !scanner.at_end(); scanner.skip_blank_lines()) {
    if (scanner.peek() == '[') check_section(scanner);
    else {
      FileSetting setting = setting_of(scanner);
      for (const FileSetting& earlier : settings)
        if (earlier.name == setting.name)
          throw base::Error{base::Exit::usage, fmt::format("{}:{}: {} stands in line {} already; one of them must go", source,
                                                           setting.line, setting.name, earlier.line)};
      if (settings.size() == most_settings) scanner.fail("more settings than there are; this is no file of ours");
      settings.push_back(std::move(setting));
    }
    scanner.end_line();
  }
  return settings;
}

void apply_text(Configuration& configuration, std::string_view text, const std::string& source) {
  Configuration changed = configuration;
  for (const FileSetting& setting : parse_settings(text, source))
    apply(changed, setting.name, setting.values, source, fmt::format("{}:{}", source, setting.line));
  configuration = std::move(changed);
}

void apply_file(Configuration& configuration, const std::filesystem::path& file) {
  apply_text(configuration, base::read_file(file, largest_file_bytes), file.string());
}

}  // namespace aisp::suite
