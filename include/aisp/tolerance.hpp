// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/buffers.hpp>

namespace aisp {

// Returns the relative error (root mean square) of one rounding to a type.
constexpr double rounding_error(ElementType type) {
  switch (type) {
    case ElementType::f64: return 4.5e-17;
    case ElementType::f32: return 2.4e-8;
    case ElementType::f16: return 2.0e-4;
    case ElementType::bf16: return 1.6e-3;
    case ElementType::e4m3: return 2.5e-2;
    case ElementType::e5m2: return 5.0e-2;
    default: return 0;
  }
}

// The allowed distance of an output from its reference: ||x - r|| / ||r|| over all compared elements, and for each element |x -
// r| relative to |r| plus the root mean square of r, which catches single wrong elements that a norm hides. If the buffer has
// groups, both apply to every group separately. Quantized outputs are compared by codes instead: the reference is rounded to the
// output's type, and errors are counted in steps from one value of the type to the next.
struct Tolerance {
  enum class Kind : std::uint8_t { automatic, exact, limits, codes };
  Kind kind = Kind::automatic;
  ElementType operands = ElementType::f64;  // automatic: type that operands are rounded to on the way (TF32: f16)
  ElementType accumulator = ElementType::f32;
  int reduction = 1;  // automatic: number of terms summed for each output
  double relative_l2 = 0;
  double element = 0;
  double most_steps = 0;  // codes: the largest error of any element
  double share = 0;       // codes: the share of elements that may be off at all
};

// Allows one rounding to the output's type and as many to the accumulator as the reduction is long (4096 at most), growing as the
// square root; three times that, or 1.5 times for the output's own rounding if it is the coarser one. Integers and records:
// exact.
constexpr Tolerance automatic{};
constexpr Tolerance exact{.kind = Tolerance::Kind::exact};

constexpr Tolerance reduction_of(int length, ElementType operands = ElementType::f64,
                                 ElementType accumulator = ElementType::f32) {
  return {.operands = operands, .accumulator = accumulator, .reduction = length};
}
// The largest of a billion rounding errors is at most 2 to 3 times the limit of their norm (6 deviations, and limits of 1.5 to
// 3).
inline constexpr double element_over_norm = 5;
// Sets explicit limits; the pair's comment says why. `element` defaults to 5 times the norm's limit.
constexpr Tolerance within(double relative_l2, double element = 0) {
  return {.kind = Tolerance::Kind::limits,
          .relative_l2 = relative_l2,
          .element = element > 0 ? element : element_over_norm * relative_l2};
}

// Requires equality, except in at most this share of the elements, which may be at most `most_steps` values of the output's type
// away.
constexpr Tolerance within_steps(double most_steps, double share) {
  return {.kind = Tolerance::Kind::codes, .most_steps = most_steps, .share = share};
}

// Limits that several pairs share. One rounding of an output to bf16 is 1.6e-3, and the steps before it add less: sums of 128
// products in 14 bits, an approximated tanh.
inline constexpr Tolerance rounded_to_bf16 = within(2.5e-3);
// For FP8 products whose sums never leave the tensor cores, which keep about 14 bits of them at each addition.
inline constexpr Tolerance fast_accumulation = within(4e-3);
// Rounding both operands to TF32 makes 3e-4; a library that truncates instead makes about twice that.
inline constexpr Tolerance tf32_operands = within(1e-3);

// A tolerance for all outputs, or one for each; the last one also applies to all further outputs. Empty: none is given.
class Tolerances {
 public:
  static constexpr std::size_t capacity = 4;
  constexpr Tolerances() = default;
  constexpr Tolerances(const Tolerance& of_all) : items_{of_all}, count_{1} {}
  template <std::size_t count>
  constexpr explicit Tolerances(const Tolerance (&list)[count]) : count_{count} {
    static_assert(count <= capacity, "more tolerances than a pair may declare");
    for (std::size_t i = 0; i < count; ++i) items_[i] = list[i];
  }
  constexpr const Tolerance& of(std::size_t output) const { return items_[output < count_ ? output : count_ - 1]; }
  constexpr std::size_t size() const { return count_; }
  constexpr bool empty() const { return count_ == 0; }
  constexpr const Tolerance* begin() const { return items_; }
  constexpr const Tolerance* end() const { return items_ + count_; }

 private:
  Tolerance items_[capacity]{};
  std::size_t count_ = 0;
};

// per_output({reduction_of(128), exact}): in the order in which outputs and inouts are declared.
template <std::size_t count>
constexpr Tolerances per_output(const Tolerance (&list)[count]) {
  return Tolerances{list};
}

// Returns the limits for an output of `type`.
Tolerance resolve(const Tolerance& tolerance, ElementType type);

}  // namespace aisp
