// SPDX-License-Identifier: Apache-2.0
// Which experts the tokens of a mixture of experts choose, made on the host from a seed, and the rows grouped by expert that
// follow from it. Slot s is choice s % top_k of token s / top_k; each slot is one row of its expert's batch.
#pragma once
#include <aisp/generators.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace aisp::moe {

// The values of a pair's size "routing".
enum class Routing : std::uint8_t {
  uniform,       // every expert is equally likely
  zipf,          // the expert of rank r is chosen in proportion to 1 / (r + 1), none more often than `hottest` times the mean
  planted,       // experts 0 to 4 have 0, 1, 127, 128 and 129 rows, and a token's other experts are neighbours
  same_experts,  // all tokens choose the same ones
};

struct Choices {
  std::size_t experts, top_k;
  Routing routing = Routing::uniform;
  double hottest = 4;  // of zipf: the fullest expert's expected rows over the mean
};

inline constexpr int planted_rows[] = {0, 1, 127, 128, 129};

namespace detail {

// Random numbers in a sequence.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t stream) : seed_{random_bits(seed, stream)} {}
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(((random_bits(seed_, next_++) >> 32) * count) >> 32); }
  double unit() { return static_cast<double>(random_bits(seed_, next_++) >> 11) * 0x1p-53; }
  void shuffle(std::span<int> values) {
    for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  std::uint64_t seed_, next_ = 0;
};

// Returns the probability that a token chooses the expert of each rank. They add up to top_k.
inline std::vector<double> inclusion(const Choices& choices) {
  const double mean = static_cast<double>(choices.top_k) / static_cast<double>(choices.experts);
  const double most = choices.routing == Routing::uniform ? mean : std::min(1.0, choices.hottest * mean);
  std::vector<double> result(choices.experts);
  double low = 0, high = static_cast<double>(choices.experts);
  for (int step = 0; step < 60; ++step) {
    const double scale = (low + high) / 2;
    for (std::size_t rank = 0; rank < result.size(); ++rank) result[rank] = std::min(most, scale / static_cast<double>(rank + 1));
    (std::accumulate(result.begin(), result.end(), 0.0) < static_cast<double>(choices.top_k) ? low : high) = scale;
  }
  return result;
}

// Draws top_k different experts for each token by systematic sampling: the experts lie in random order on a line, each as long
// as its probability, and points at a distance of 1 from a random start pick them.
inline void draw_experts(std::span<int> experts, const Choices& choices, std::uint64_t seed) {
  const std::vector<double> shares = inclusion(choices);
  std::vector<int> of_rank(choices.experts), order(choices.experts);
  std::iota(of_rank.begin(), of_rank.end(), 0);
  std::iota(order.begin(), order.end(), 0);
  Draws draws{seed, 0};
  draws.shuffle(of_rank);
  for (std::size_t token = 0; token < experts.size() / choices.top_k; ++token) {
    draws.shuffle(order);
    const double start = draws.unit();
    double through = 0;
    std::size_t chosen = 0;
    for (std::size_t i = 0; i < order.size() && chosen < choices.top_k; ++i) {
      const auto rank = static_cast<std::size_t>(order[i]);
      through += shares[rank];
      const bool last_ones = order.size() - i == choices.top_k - chosen;  // rounding may have lost a point at the line's end
      if (through > start + static_cast<double>(chosen) || last_ones) experts[token * choices.top_k + chosen++] = of_rank[rank];
    }
  }
}

inline void plant_experts(std::span<int> experts, const Choices& choices, std::uint64_t seed) {
  constexpr std::size_t planted = std::size(planted_rows);
  if (choices.experts < planted + choices.top_k) throw std::logic_error{"planted routing wants more experts"};
  std::vector<int> tokens(experts.size() / choices.top_k);
  std::iota(tokens.begin(), tokens.end(), 0);
  Draws draws{seed, 0};
  draws.shuffle(tokens);
  for (std::size_t token = 0; token < tokens.size(); ++token) {
    const std::size_t first = planted + draws.below(choices.experts - planted - choices.top_k + 1);
    for (std::size_t k = 0; k < choices.top_k; ++k) experts[token * choices.top_k + k] = static_cast<int>(first + k);
  }
  std::size_t next = 0;
  for (std::size_t expert = 0; expert < planted; ++expert)
    for (int row = 0; row < planted_rows[expert] && next < tokens.size(); ++row)
      experts[static_cast<std::size_t>(tokens[next++]) * choices.top_k] = static_cast<int>(expert);
}

}  // namespace detail

// Fills the expert of each slot.
inline void choose_experts(std::span<int> experts, const Choices& choices, std::uint64_t seed) {
  if (choices.top_k > choices.experts) throw std::logic_error{"a token chooses each expert once at most"};
  if (choices.routing == Routing::planted) return detail::plant_experts(experts, choices, seed);
  if (choices.routing != Routing::same_experts) return detail::draw_experts(experts, choices, seed);
  const std::size_t first = detail::Draws{seed, 0}.below(choices.experts);
  for (std::size_t slot = 0; slot < experts.size(); ++slot)
    experts[slot] = static_cast<int>((first + slot % choices.top_k) % choices.experts);
}

// For Setup::input, a buffer of tokens * top_k elements.
inline HostFill<int> expert_choices(const Choices& choices) {
  return [choices](std::span<int> experts, std::uint64_t seed) { choose_experts(experts, choices, seed); };
}

// Rows in the order of their experts, those of one expert in the order of their slots: the reference of the kernels in index.cuh.
struct Grouped {
  std::vector<int> offsets;      // [experts + 1]: where each expert's rows begin
  std::vector<int> slot_of_row;  // [slots]: -1 from the last row on, where slots were dropped
  std::vector<int> row_of_slot;  // [slots]: -1 of a dropped one
};

// Groups slots by their experts; a slot of expert -1 is dropped.
inline Grouped group_by_expert(std::span<const int> experts_of, std::size_t experts) {
  Grouped result{std::vector<int>(experts + 1, 0), std::vector<int>(experts_of.size(), -1),
                 std::vector<int>(experts_of.size(), -1)};
  for (const int expert : experts_of)
    if (expert >= 0) ++result.offsets[static_cast<std::size_t>(expert) + 1];
  std::partial_sum(result.offsets.begin(), result.offsets.end(), result.offsets.begin());
  std::vector<int> next(result.offsets.begin(), result.offsets.end() - 1);
  for (std::size_t slot = 0; slot < experts_of.size(); ++slot) {
    if (experts_of[slot] < 0) continue;
    const int row = next[static_cast<std::size_t>(experts_of[slot])]++;
    result.row_of_slot[slot] = row;
    result.slot_of_row[static_cast<std::size_t>(row)] = static_cast<int>(slot);
  }
  return result;
}

}  // namespace aisp::moe
