// SPDX-License-Identifier: Apache-2.0
// The operations and tensors of a training step of a 12-layer model, and when each tensor is freed.
#pragma once
#include <aisp/generators.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>

namespace aisp::ch13 {

inline constexpr std::size_t layers = 12, forward_operations = 13, backward_operations = 22;
inline constexpr std::size_t operations = layers * (forward_operations + backward_operations);
inline constexpr std::size_t tensors = operations + operations * 11 / 21;  // eleven of 21 operations have a second result
inline constexpr std::size_t state_bytes = std::size_t{1} << 20;
inline constexpr std::size_t most_delay = 6;
inline constexpr std::uint32_t none = ~0u;
inline constexpr std::uint32_t empty_operation = 209;   // its second result has no bytes
inline constexpr std::uint32_t old_state_last_use = 8;  // the operation after which the state of the step before is freed

struct Operation {
  std::uint32_t inputs[2];   // tensors; `none`: the step's input
  std::uint32_t results[2];  // tensors; the second may be `none`
};

// A step computes the same in all steps. Only how long a tensor stays after its last use changes.
struct Step {
  std::array<Operation, operations> operation;
  std::array<std::uint32_t, tensors> bytes;
  std::array<std::uint32_t, tensors> last_use;  // the operation
  std::uint32_t state;                          // the last result, which outlives the step

  Step() {
    // Most sizes lie on a border of a size class or one vector beyond it.
    constexpr std::uint32_t kib = 1024;
    constexpr std::uint32_t choices[] = {64 * kib,  64 * kib + 16,  96 * kib,       128 * kib,      128 * kib + 16,
                                         160 * kib, 224 * kib,      256 * kib,      256 * kib - 16, 320 * kib,
                                         512 * kib, 512 * kib + 16, 768 * kib + 16, 1024 * kib};
    std::uint32_t made = 0;
    for (std::uint32_t o = 0; o < operations; ++o) {
      const std::uint32_t before = o == 0 ? none : operation[o - 1].results[0];
      operation[o] = {{before, other_input(o)}, {made, none}};
      bytes[made] = choices[random_bits(1, made) % std::size(choices)];
      last_use[made++] = o;
      if ((o + 1) * 11 / 21 != o * 11 / 21) {
        bytes[made] = o == empty_operation ? 0 : choices[random_bits(1, made) % std::size(choices)];
        last_use[made] = o;
        operation[o].results[1] = made++;
      }
      for (const std::uint32_t input : operation[o].inputs)
        if (input != none) last_use[input] = o;
    }
    state = operation[operations - 1].results[0];
    bytes[state] = state_bytes;
  }

 private:
  // An operation backward reads a result of the layer that it is the derivative of; one forward an earlier result of its layer.
  std::uint32_t other_input(std::uint32_t o) const {
    constexpr std::size_t all_forward = layers * forward_operations;
    std::uint32_t from =
        o == 0 ? none : o - 1 - static_cast<std::uint32_t>(random_bits(2, o) % std::min<std::size_t>(o, forward_operations));
    if (o >= all_forward) {
      const std::size_t layer = layers - 1 - (o - all_forward) / backward_operations;
      from = static_cast<std::uint32_t>(layer * forward_operations + random_bits(2, o) % forward_operations);
    }
    if (from == none) return none;
    const std::uint32_t second = operation[from].results[1];
    const bool takes_second = second != none && bytes[second] > 0 && random_bits(3, o) % 2 == 0;
    return takes_second ? second : operation[from].results[0];
  }
};

struct Release {
  std::uint32_t operation, tensor;  // after this operation
};

// Each tensor is freed up to six operations after its last use, as references go out of scope; by another choice with each seed.
inline void draw_releases(std::span<Release> releases, std::uint64_t seed) {
  const auto step = std::make_unique<Step>();
  for (std::uint32_t t = 0, r = 0; t < tensors; ++t) {
    if (t == step->state) continue;
    const auto delay = static_cast<std::uint32_t>(random_bits(seed, t) % (most_delay + 1));
    releases[r++] = {std::min<std::uint32_t>(step->last_use[t] + delay, operations - 1), t};
  }
  std::sort(releases.begin(), releases.end(), [seed](const Release& a, const Release& b) {
    if (a.operation != b.operation) return a.operation < b.operation;
    return random_bits(~seed, a.tensor) < random_bits(~seed, b.tensor);  // in no order of their making
  });
}

}  // namespace aisp::ch13
