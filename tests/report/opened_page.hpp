// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <sstream>
#include <string>

#include "base/deflate.hpp"
#include "base64.hpp"

namespace aisp::report {

// The page with everything opened, as its script does it; rows of all variants stand behind the table.
inline std::string opened(std::string page) {
  const auto value_at = [&](std::size_t at) {
    const std::size_t begin = page.find('"', at) + 1;
    return page.substr(begin, page.find('"', begin) - begin);
  };
  const auto content_at = [&](std::size_t at) {
    return base::inflated(tests::from_base64(value_at(page.find("data-deflated=", at))));
  };
  const auto replace = [&](std::size_t at, const std::string& end, const std::string& by) {
    page.replace(at, page.find(end, at) + end.size() - at, by);
  };
  for (std::size_t at = 0; (at = page.find("<div class=\"packed\"", at)) != std::string::npos;)
    replace(at, "</p></div>\n", content_at(at));
  std::map<std::string, std::string> files;
  for (std::size_t at = 0; (at = page.find("<div data-holds=", at)) != std::string::npos; ++at) {
    std::istringstream ids{value_at(at)}, texts{content_at(at)};
    for (std::string id, text; ids >> id && std::getline(texts, text, '\f');) files[id] = text;
  }
  for (std::size_t at = 0; (at = page.find("<code data-from=", at)) != std::string::npos;) {
    std::string code = files.at(value_at(at));
    const std::size_t lines = page.find("data-lines=\"", at);
    if (lines < page.find('>', at)) {
      std::size_t first = std::stoul(value_at(lines)), count = std::stoul(value_at(lines).substr(value_at(lines).find(' ')));
      std::size_t begin = 0;
      for (; first > 1; --first) begin = code.find('\n', begin) + 1;
      std::size_t end = begin;
      for (; count > 0 && end != std::string::npos; --count) end = code.find('\n', end + 1);
      code = code.substr(begin, end - begin);
    }
    replace(at, "</code>", "<code>" + code + "</code>");
  }
  if (const std::size_t rows = page.find("<div id=\"all-rows\""); rows != std::string::npos)
    replace(rows, "</div>", content_at(rows));
  return page;
}

}  // namespace aisp::report
