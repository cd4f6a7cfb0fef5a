// SPDX-License-Identifier: Apache-2.0
// The references that a measured figure is printed next to.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "machine/machine.hpp"

namespace aisp::peak {

struct Reference {
  double value = 0;
  std::string source;
  std::string_view doubt{};  // why it may be wrong; empty: no doubt
  // Of the reference in `measured`: more is better for rates, and printed as it is for times.
  double percent(double measured) const { return measured / value * 100; }
};

// The maker's figure of that GPU; nothing where no sheet states one.
std::optional<Reference> vendor_figure(const machine::Gpu& gpu, std::string_view id);
// Returns the figure that our own runs recorded on the same chip.
std::optional<Reference> recorded_figure(const machine::Gpu& gpu, std::string_view id);

}  // namespace aisp::peak
