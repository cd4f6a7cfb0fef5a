// SPDX-License-Identifier: Apache-2.0
#include "peak/levels/chase.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

namespace aisp::peak {
namespace {

// std::shuffle gives other orders with other libraries.
void shuffle(std::uint64_t* first, std::size_t count, std::mt19937_64& random) {
  for (std::size_t i = count; i > 1; --i) std::swap(first[i - 1], first[random() % i]);
}

std::vector<std::uint64_t> shuffled(std::size_t count, std::mt19937_64& random) {
  std::vector<std::uint64_t> order(count);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  shuffle(order.data(), count, random);
  return order;
}

}  // namespace

std::vector<std::uint64_t> chase_of_lines(std::size_t bytes, std::size_t line, std::size_t window, std::uint64_t seed) {
  std::mt19937_64 random{seed};
  const std::size_t lines = bytes / line, in_window = std::max<std::size_t>(window / line, 1);
  std::vector<std::uint64_t> order;
  order.reserve(lines);
  for (const std::uint64_t index : shuffled((lines + in_window - 1) / in_window, random)) {
    const std::size_t first = index * in_window, count = std::min(in_window, lines - first);
    for (const std::uint64_t place : shuffled(count, random)) order.push_back((first + place) * line);
  }
  return order;
}

std::vector<std::uint64_t> chase_of_pages(std::size_t bytes, std::size_t line, std::size_t page, std::uint64_t seed) {
  std::mt19937_64 random{seed};
  const std::size_t lines_in_page = page / line;
  std::vector<std::uint64_t> order = shuffled(bytes / page, random);
  for (std::uint64_t& index : order) index = index * page + random() % lines_in_page * line;
  return order;
}

}  // namespace aisp::peak
