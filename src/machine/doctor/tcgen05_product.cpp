// SPDX-License-Identifier: Apache-2.0
// Without the rest of aisp, as scripts/tcgen05-probe compiles it alone.
#include <string>

#include "machine/doctor/tcgen05_launch.hpp"

namespace aisp::machine {

std::string judge_product(const std::vector<float>& c) {
  using P = Tcgen05Product;
  constexpr std::size_t elements = static_cast<std::size_t>(P::m) * P::n;
  if (c.size() != elements)
    return "the product has " + std::to_string(c.size()) + " of " + std::to_string(elements) + " elements";
  for (int row = 0; row < P::m; ++row)
    for (int column = 0; column < P::n; ++column) {
      int sum = 0;
      for (int depth = 0; depth < P::k; ++depth) sum += P::a(row, depth) * P::b(column, depth);
      const float found = c[static_cast<std::size_t>(row) * P::n + static_cast<std::size_t>(column)];
      if (found != static_cast<float>(sum))
        return "row " + std::to_string(row) + ", column " + std::to_string(column) + " is " + std::to_string(found) +
               " instead of " + std::to_string(sum);
    }
  return {};
}

}  // namespace aisp::machine
