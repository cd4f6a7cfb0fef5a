// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string_view>

namespace aisp::cli {

// A pair that `aisp new` writes: the file templates/starter/KIND.EXTENSION, which defines aisp::starter::KIND.
struct Template {
  std::string_view kind;       // "multi_gpu"
  std::string_view extension;  // ".cu"
  std::string_view text;
};

std::span<const Template> templates();

}  // namespace aisp::cli
