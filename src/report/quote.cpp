// SPDX-License-Identifier: Apache-2.0
#include "report/quote.hpp"

#include <nlohmann/json.hpp>

#include "base/system/terminal.hpp"
#include "base/text.hpp"
#include "evidence/json.hpp"

namespace aisp::report {
namespace {

constexpr const char* replacement = "\xEF\xBF\xBD";

// A spreadsheet takes what begins like this for a formula, which may call programs and addresses.
bool may_be_formula(const std::string& field) {
  return !field.empty() && std::string_view{"=+-@\t\r"}.find(field.front()) != std::string_view::npos &&
         !base::parse_number<double>(field);
}

std::string csv_field(const std::string& field) {
  const std::string text = may_be_formula(field) ? "'" + field : field;
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? "\"\"" : std::string(1, c);
  return result + "\"";
}

bool is_forbidden_in_xml(unsigned char c) { return c < 0x20 && c != '\t' && c != '\n' && c != '\r'; }

}  // namespace

std::string valid_utf8(std::string_view text) {
  return nlohmann::json::parse(evidence::json_text(std::string{text})).get<std::string>();
}

std::string csv_line(const std::vector<std::string>& fields) {
  std::string text;
  for (std::size_t i = 0; i < fields.size(); ++i) text += (i > 0 ? "," : "") + csv_field(fields[i]);
  return text + "\r\n";
}

std::string markdown_text(std::string_view text) {
  std::string result;
  const std::string line = base::without_controls(text);
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool ends_name_of_link = line[i] == ']' && i + 1 < line.size() && (line[i + 1] == '(' || line[i + 1] == '[');
    switch (line[i]) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '\\':
      case '|':
      case '`': (result += '\\') += line[i]; break;
      default: (result += ends_name_of_link ? "\\" : "") += line[i];
    }
  }
  return result;
}

std::string xml_escaped(std::string_view text) {
  std::string result;
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      case '\n': result += "&#10;"; break;
      case '\r': result += "&#13;"; break;
      default:
        if (is_forbidden_in_xml(static_cast<unsigned char>(c))) result += replacement;
        else result += c;
    }
  }
  return result;
}

std::string github_message(std::string_view text) {
  std::vector<std::string> lines = base::split(valid_utf8(text), '\n');
  for (std::string& line : lines) {
    std::string escaped;
    for (const char c : base::without_controls(line)) escaped += c == '%' ? "%25" : std::string(1, c);
    line = std::move(escaped);
  }
  return base::join(lines, "%0A");
}

std::string github_property(std::string_view text) {
  std::string result;
  for (const char c : github_message(text)) {
    if (c == ':') result += "%3A";
    else if (c == ',') result += "%2C";
    else result += c;
  }
  return result;
}

}  // namespace aisp::report
