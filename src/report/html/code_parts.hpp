// SPDX-License-Identifier: Apache-2.0
// Which functions of a pair's files make up one of its variants. Private to report.
#pragma once
#include <string>
#include <vector>

#include "report/html/html.hpp"

namespace aisp::report {

// A function with the comment above it.
struct CodePart {
  std::string name, path, text;
  int line = 0;            // of the first line of `text`
  bool is_kernel = false;  // __global__
  bool operator==(const CodePart& other) const { return path == other.path && line == other.line; }
};

// In the order of the files: the kernels that the variant launches, its method, and what those call, as far as it is in the
// files. Empty where the declaration of the pair does not name the variant.
std::vector<CodePart> parts_of_variant(const std::vector<SourceText>& files, const std::string& variant);
// All kernels of a file.
std::vector<CodePart> kernels_of(const SourceText& file);

}  // namespace aisp::report
