// SPDX-License-Identifier: Apache-2.0
#include "suite/configuration_file.hpp"

#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_FORMATTERS 0
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/files.hpp"
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
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
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

// What stands open at a place in a TOML text: nothing, a comment up to the end of its line, or a string up to its closing quotes.
class Place {
 public:
  explicit Place(std::string_view text) : text_{text} {}
  bool holds_any_letter() const { return end_ == "\n" || end_.size() == 1; }
  bool step() {
    if (end_.empty()) open();
    else if (text_.starts_with(end_) || (end_.size() == 1 && text_.front() == '\n')) skip(std::exchange(end_, {}).size());
    else skip(text_.front() == '\\' && end_.front() == '"' ? 2 : 1);
    return !text_.empty();
  }
  char here() const { return text_.front(); }
  int line() const { return line_; }

 private:
  void open() {
    if (string_may_begin())
      for (const std::string_view quotes : {"\"\"\"", "'''", "\"", "'"})
        if (text_.starts_with(quotes)) {
          end_ = quotes;
          break;
        }
    skip(std::max<std::size_t>(1, end_.size()));
    if (end_.empty() && previous_ == '#') end_ = "\n";
  }
  // Elsewhere a quote is part of a bare value, which toml++ reads on before it complains.
  bool string_may_begin() const {
    return previous_solid_ == 0 || std::string_view{"\n=[,{."}.find(previous_solid_) != std::string_view::npos;
  }
  void skip(std::size_t bytes) {
    for (const char c : text_.substr(0, bytes)) {
      line_ += c == '\n' ? 1 : 0;
      previous_ = c;
      if (c != ' ' && c != '\t' && c != '\r') previous_solid_ = c;
    }
    text_.remove_prefix(std::min(bytes, text_.size()));
  }
  std::string_view text_, end_;
  char previous_ = 0, previous_solid_ = 0;  // solid: no blank
  int line_ = 1;
};

// toml++ 3.0 asks of every letter outside quotes whether it is white space, and has no defined answer for U+00A1 to U+0499. TOML
// allows none of them there, nor does any setting need a string of several lines.
void demand_ascii(std::string_view text, const std::string& source) {
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  if (text.empty()) return;
  Place place{text};
  do {
    if (static_cast<unsigned char>(place.here()) > 127 && !place.holds_any_letter())
      fail(source, place.line(), "a letter outside ASCII, where only strings in one pair of quotes and comments may hold one");
  } while (place.step());
}

}  // namespace

std::vector<FileSetting> parse_settings(std::string_view text, const std::string& source) {
  demand_ascii(text, source);
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& error) {
    const auto line = static_cast<std::size_t>(error.source().begin.line);
    const std::vector<std::string> lines = base::split(text, '\n');
    const std::string found = line >= 1 && line <= lines.size() ? fmt::format(" ({})", base::one_line(lines[line - 1], 60)) : "";
    fail(source, static_cast<int>(line), base::one_line(error.description(), 200) + found);
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
  apply_text(configuration, base::read_file(file, largest_file_bytes), file.string());
}

}  // namespace aisp::suite
