// SPDX-License-Identifier: Apache-2.0
#include "report/usage.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "evidence/quantities.hpp"

namespace aisp::report {
namespace {

using base::display_ms;
using evidence::VariantResult;

std::string bytes_text(std::uint64_t bytes) { return bytes == 0 ? "-" : base::human_bytes(static_cast<double>(bytes)); }

}  // namespace

std::string joules_text(double joules) {
  if (joules >= 0.1) return base::significant(joules) + " J";
  if (joules >= 1e-4) return base::significant(joules * 1e3) + " mJ";
  return base::significant(joules * 1e6) + " uJ";
}

std::string energy_ratio_text(const evidence::Energy& energy) {
  if (!energy.ratio) return "-";
  return fmt::format("{}x [{}, {}]", base::significant(energy.ratio->value), base::significant(energy.ratio->low),
                     base::significant(energy.ratio->high));
}

namespace {

std::string number_text(evidence::Format format, double value) {
  using evidence::Format;
  switch (format) {
    case Format::coefficient: return fmt::format("{:.2f}", value);
    case Format::count: return fmt::format("{:.0f}", value);
    case Format::milliseconds: return display_ms(value);
    case Format::bytes: return base::human_bytes(value);
    case Format::joules: return joules_text(value);
    case Format::watts: return fmt::format("{:.0f} W", value);
    case Format::percent: return fmt::format("{:.0f} %", value);
    case Format::ratio: return base::significant(value) + "x";
    case Format::error: return value > 0 ? fmt::format("{:.2e}", value) : "0";
    case Format::flop_rate: return base::human_rate(value, "FLOP");
    case Format::byte_rate: return base::human_rate(value, "B");
    case Format::number: break;
  }
  return base::significant(value);
}

std::string cell_text(const evidence::Quantity& quantity, const evidence::PairResult& pair, const VariantResult& variant) {
  if (quantity.words != nullptr) return quantity.words(pair, variant);
  const std::optional<evidence::Range> range = quantity.get(pair, variant);
  if (!range) return {};
  const std::string text = number_text(quantity.format, range->value);
  if (!(range->low < range->high)) return text;
  return fmt::format("{} [{}, {}]", text, number_text(quantity.format, range->low), number_text(quantity.format, range->high));
}

}  // namespace

Rows quantity_rows(const evidence::PairResult& pair, std::string_view group) {
  Rows rows{{"variant"}};
  for (const evidence::Quantity& quantity : evidence::quantities())
    if (quantity.group == group) rows.front().emplace_back(quantity.title);
  for (const VariantResult& variant : pair.variants) {
    std::vector<std::string> cells{variant.name};
    for (const evidence::Quantity& quantity : evidence::quantities())
      if (quantity.group == group) cells.push_back(cell_text(quantity, pair, variant));
    if (std::any_of(cells.begin() + 1, cells.end(), [](const std::string& cell) { return !cell.empty(); }))
      rows.push_back(std::move(cells));
  }
  return rows;
}

Rows kernel_rows(const evidence::PairResult& pair) {
  Rows rows{{"variant", "kernel", "registers a thread", "local memory a thread"}};
  for (const VariantResult& variant : pair.variants)
    for (const evidence::KernelResources& kernel : variant.kernels)
      rows.push_back({variant.name, kernel.name, std::to_string(kernel.registers), bytes_text(kernel.local_bytes)});
  return rows;
}

}  // namespace aisp::report
