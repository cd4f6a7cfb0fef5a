// SPDX-License-Identifier: Apache-2.0
#include "report/html/text.hpp"

#include <fmt/format.h>

#include "base/deflate.hpp"
#include "base/text.hpp"
#include "report/quote.hpp"

namespace aisp::report::html {
namespace {

bool is_control(unsigned char c) { return (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f; }

}  // namespace

std::string escaped(std::string_view text) {
  const std::string valid = valid_utf8(text);
  std::string result;
  result.reserve(valid.size() + valid.size() / 8);
  for (const char c : valid) {
    if (c == '&') result += "&amp;";
    else if (c == '<') result += "&lt;";
    else if (c == '>') result += "&gt;";
    else if (c == '"') result += "&quot;";
    else if (c == '\'') result += "&#39;";
    else if (is_control(static_cast<unsigned char>(c))) result += "\xEF\xBF\xBD";
    else result += c;
  }
  return result;
}

std::string breakable(std::string_view name) {
  std::string text;
  for (const char c : escaped(name)) text += c == '_' ? std::string{"_<wbr>"} : std::string(1, c);
  return text;
}

std::string id_of(std::string_view text) {
  std::string id = "p-";
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
    id += plain ? std::string(1, c) : fmt::format("_{:02x}", static_cast<unsigned char>(c));
  }
  return id;
}

std::string link_to(const evidence::PairResult& pair) {
  return tag("a", breakable(label_of(pair)), fmt::format("href=\"#{}\"", id_of(label_in_run(pair))));
}

std::string tag(std::string_view name, std::string_view content, std::string_view attributes) {
  return fmt::format("<{0}{1}{2}>{3}</{0}>", name, attributes.empty() ? "" : " ", attributes, content);
}

std::string row(const std::vector<std::string>& cells) {
  std::string text = "<tr>";
  for (const std::string& cell : cells) text += tag("td", cell);
  return text + "</tr>\n";
}

std::string table(std::string_view label, const std::vector<std::string>& heading, const std::string& rows) {
  std::string head;
  for (const std::string& cell : heading) head += tag("th", escaped(cell), "scope=\"col\"");
  const std::string name = escaped(label);
  return fmt::format(
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table>{}<tbody>\n{}</tbody></table></div>\n", name,
      heading.empty() ? "" : "<thead><tr>" + head + "</tr></thead>", rows);
}

std::string text_table(std::string_view label, const Rows& cells) {
  std::string rows;
  for (std::size_t i = 1; i < cells.size(); ++i) {
    std::vector<std::string> safe;
    for (const std::string& cell : cells[i]) safe.push_back(escaped(cell));
    rows += row(safe);
  }
  return rows.empty() ? "" : table(label, cells.front(), rows);
}

std::string folded(std::string_view summary, std::string_view content) {
  return fmt::format("<details class=\"more\"><summary>{}</summary>\n{}</details>\n", summary, content);
}

static std::string compressed(const std::string& content) { return base::base64(base::deflated(content)); }

std::string packed(const std::string& content) {
  return fmt::format(
      "<div class=\"packed\" data-deflated=\"{}\"><p class=\"note\">This part is compressed, and only scripts and a browser of "
      "2023 or later can show it.</p></div>\n",
      compressed(content));
}

std::string stored(const std::string& id, const std::string& content) {
  return fmt::format("<div id=\"{}\" data-deflated=\"{}\" hidden></div>\n", id, compressed(content));
}

std::string stored_together(const std::vector<std::pair<std::string, std::string>>& texts) {
  std::string ids, all;
  for (const auto& [id, text] : texts) {
    ids += (ids.empty() ? "" : " ") + id;
    all += (all.empty() ? "" : "\f") + text;
  }
  return fmt::format("<div data-holds=\"{}\" data-deflated=\"{}\" hidden></div>\n", ids, compressed(all));
}

std::string figure(const std::function<svg::Picture(double width)>& draw, double wide_px) {
  return tag("div", svg::in_page(draw(wide_px), "wide") + svg::in_page(draw(svg::narrow_px), "narrow"), "class=\"figure\"") +
         "\n";
}

std::string time_text(double milliseconds) { return svg::with_micro_sign(base::display_ms(milliseconds)); }

std::string_view role_text(evidence::VariantRole role) { return role == evidence::VariantRole::optimized ? "" : to_string(role); }

std::string badge(evidence::Status status) {
  const std::string_view word = to_string(status);
  return fmt::format("<span class=\"badge {0}\">{1}</span>", word, status == evidence::Status::timeout ? "timed out" : word);
}

std::string badge(evidence::Verdict verdict) {
  const bool open = verdict == evidence::Verdict::cannot_tell;
  const std::string_view word = to_string(verdict);
  return fmt::format("<span class=\"badge {}\">{}</span>", open ? std::string_view{"unclear"} : word,
                     open ? "cannot tell" : word);
}

}  // namespace aisp::report::html
