// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "base/terminal.hpp"

namespace aisp::cli {

// Throws base::Error (usage) for anything but auto, always and never.
base::Color color_flag(const std::string& text);

}  // namespace aisp::cli
