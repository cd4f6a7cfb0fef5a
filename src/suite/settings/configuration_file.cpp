// SPDX-License-Identifier: Apache-2.0
#include "suite/settings/configuration.hpp"

#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_FORMATTERS 0
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "base/text.hpp"

namespace aisp::suite {
namespace {

constexpr std::size_t largest_file_bytes = std::size_t{1} << 20;

[[noreturn]] void fail(const std::string& source, int line, const std::string& what) {
  throw base::Error{base::Exit::usage, fmt::format("{}:{}: {}", source, line, what)};
}

int line_of(const toml::node& node) { return static_cast<int>(node.source().begin.line); }

// As a flag would be given it.
std::string text_of(const toml::node& node, const std::string& source) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* integer = node.as_integer()) return fmt::format("{}", integer->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{:#}", number->get());  // 1e3 is no whole number
  if (const auto* choice = node.as_boolean()) return choice->get() ? "true" : "false";
  fail(source, line_of(node), "a setting is a string, a number, true or false, or an array of these");
}

void add_settings(const toml::table& table, const std::string& source, std::vector<FileSetting>& settings) {
  for (const auto& [key, node] : table) {
    if (node.is_table()) continue;
    FileSetting setting{.name = std::string{key.str()}, .line = line_of(node)};
    std::replace(setting.name.begin(), setting.name.end(), '_', '-');
    if (const auto* array = node.as_array())
      for (const toml::node& value : *array) setting.values.push_back(text_of(value, source));
    else setting.values.push_back(text_of(node, source));
    const auto same = [&](const FileSetting& earlier) { return earlier.name == setting.name; };
    if (const auto earlier = std::find_if(settings.begin(), settings.end(), same); earlier != settings.end())
      fail(source, setting.line, fmt::format("{} stands in line {} already; one of them must go", setting.name, earlier->line));
    settings.push_back(std::move(setting));
  }
}

bool is_ascii(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) > 127; });
}

// Takes from the front of `text` what consists of `letters`; says how much it was.
std::size_t take(std::string_view& text, std::string_view letters) {
  const std::size_t count = std::min(text.find_first_not_of(letters), text.size());
  text.remove_prefix(count);
  return count;
}

// NAME = VALUE, a comment, or both; any letter may stand in the comment and in a VALUE that has quotes and no escapes.
bool is_plain_line(std::string_view line) {
  constexpr std::string_view blanks = " \t\r", word = "-._+0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  take(line, blanks);
  if (line.starts_with('#')) return true;
  if (take(line, word) == 0 || take(line, blanks) == 0 || take(line, "=") != 1) return false;
  take(line, blanks);
  if (line.starts_with('"') || line.starts_with('\'')) {
    const std::size_t end = line.find(line.front(), 1);
    if (end == std::string_view::npos || line.substr(0, end).find('\\') != std::string_view::npos) return false;
    line.remove_prefix(end + 1);
  } else take(line, word);
  take(line, blanks);
  return line.empty() || line.starts_with('#');
}

// toml++ asks of letters in many places whether they are white space, and has no defined answer for U+00A1 to U+0499. So letters
// outside ASCII are let through only where it does not ask.
void demand_ascii(std::string_view text, const std::string& source) {
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  if (is_ascii(text)) return;
  int number = 0;
  for (const std::string& line : base::split(text, '\n')) {
    ++number;
    if (is_ascii(line) || is_plain_line(line)) continue;
    fail(source, number,
         "letters outside ASCII may stand in comments and in NAME = \"TEXT\" without backslashes; write others as \\uXXXX");
  }
}

// toml++ makes a table of each part of a dotted key, and takes them apart one within another: tens of thousands of them overflow
// the stack. No line of settings has so many dots.
void demand_few_dots(std::string_view text, const std::string& source) {
  constexpr std::ptrdiff_t most = 256;
  int number = 0;
  for (const std::string& line : base::split(text, '\n')) {
    ++number;
    if (!base::trim(line).starts_with('#') && std::ranges::count(line, '.') > most)
      fail(source, number, fmt::format("more than {} dots in a line; no setting has a name of so many parts", most));
  }
}

}  // namespace

std::vector<FileSetting> parse_settings(std::string_view text, const std::string& source) {
  demand_ascii(text, source);
  demand_few_dots(text, source);
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& error) {
    const auto line = static_cast<std::size_t>(error.source().begin.line);
    const std::vector<std::string> lines = base::split(text, '\n');
    const std::string found = line >= 1 && line <= lines.size() ? fmt::format(" ({})", base::one_line(lines[line - 1], 60)) : "";
    // TOML's integers are signed, a seed is not.
    const char* const advice =
        error.description().find("not representable in 64 bits") != std::string_view::npos ? "; put the number in quotes" : "";
    fail(source, static_cast<int>(line), base::one_line(error.description(), 200) + found + advice);
  }
  std::vector<FileSetting> settings;
  add_settings(table, source, settings);
  for (const auto& [key, node] : table) {
    if (!node.is_table()) continue;
    if (key.str() != "run")
      fail(source, line_of(node),
           fmt::format("unknown section [{}]; settings stand in [run] or in none", base::one_line(key.str(), 40)));
    for (const auto& [inner, below] : *node.as_table())
      if (below.is_table())
        fail(source, line_of(below), fmt::format("unknown section [run.{}]", base::one_line(inner.str(), 40)));
    add_settings(*node.as_table(), source, settings);
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
  apply_text(configuration, base::read_input(file, largest_file_bytes), file.string());
}

}  // namespace aisp::suite
