// SPDX-License-Identifier: Apache-2.0
#include "report/html/page_frame.hpp"

#include <stdexcept>

namespace aisp::report {

std::string filled(std::string_view text, const std::map<std::string, std::string, std::less<>>& values) {
  std::string result;
  std::size_t done = 0;
  for (std::size_t open = text.find("{{"); open != std::string_view::npos; open = text.find("{{", done)) {
    const std::size_t close = text.find("}}", open);
    const std::string_view name = text.substr(open + 2, close - open - 2);
    const auto value = values.find(name);
    if (close == std::string_view::npos || value == values.end())
      throw std::logic_error{"the page asks for '" + std::string{name} + "', which nobody gives"};
    result.append(text.substr(done, open - done)).append(value->second);
    done = close + 2;
  }
  return result.append(text.substr(done));
}

}  // namespace aisp::report
