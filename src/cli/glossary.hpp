// SPDX-License-Identifier: Apache-2.0
// The words of tables and reports, for `aisp explain`.
#pragma once
#include <span>
#include <string_view>

namespace aisp::cli {

struct Term {
  std::string_view kind;  // status, verdict, role, bound, column, finding, change, check, metric
  std::string_view name;
  std::string_view text;
};
std::span<const Term> glossary();
// Checks, metrics and findings: the rows of docs/method.md, from which cmake/manual.py generates it.
std::span<const Term> manual_terms();

}  // namespace aisp::cli
