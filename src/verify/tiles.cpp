// SPDX-License-Identifier: Apache-2.0
#include "verify/tiles.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/one_way.hpp"

namespace aisp::verify {

std::string concentrated_error(const pair::Snapshot& found, const pair::Snapshot& reference, double rms, double most,
                               std::uint64_t seed) {
  const std::size_t count = found.elements().count;
  if (count < 2 * tile_elements) return {};
  base::OneWayRandom random{seed};
  std::vector<std::size_t> indices;
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    const std::size_t first = random() % (count - tile_elements + 1);
    for (std::size_t k = 0; k < tile_elements; ++k) indices.push_back(first + k);
  }
  const std::vector<double> values = found.values(indices), expected = reference.values(indices);
  double farthest = 0;
  std::size_t first_of_farthest = 0;
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    double errors = 0, squares = 0;
    for (std::size_t i = tile * tile_elements; i < (tile + 1) * tile_elements; ++i) {
      errors += (values[i] - expected[i]) * (values[i] - expected[i]);
      squares += expected[i] * expected[i];
    }
    const double scale = std::max(rms, std::sqrt(squares / tile_elements));
    const double error = errors == 0 ? 0 : std::sqrt(errors / tile_elements) / scale;
    if (!(error > farthest)) continue;
    farthest = error;
    first_of_farthest = indices[tile * tile_elements];
  }
  if (farthest <= most) return {};
  return fmt::format("elements {} to {} of {} differ from the baseline's by {:.2g} in the root mean square (limit {:.2g})",
                     first_of_farthest, first_of_farthest + tile_elements - 1, found.buffer().name, farthest, most);
}

}  // namespace aisp::verify
