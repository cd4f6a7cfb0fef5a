// SPDX-License-Identifier: Apache-2.0
#include "cli/flags.hpp"

#include <fmt/format.h>

#include "base/error.hpp"

namespace aisp::cli {

base::Color color_flag(const std::string& text) {
  if (const auto color = base::parse_color(text)) return *color;
  throw base::Error{base::Exit::usage, fmt::format("--color '{}' must be auto, always or never", text)};
}

}  // namespace aisp::cli
