// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/pair.hpp>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

namespace aisp::pair {

// Returns the baseline, the optimized variants, the controls, then the libraries.
inline std::vector<const Variant*> all_variants(const Pair& pair) {
  std::vector<const Variant*> all{&pair.baseline};
  const auto add = [&](const Variants& variants) {
    for (const Variant& variant : variants) all.push_back(&variant);
  };
  add(pair.optimized);
  add(pair.controls);
  add(pair.libraries);
  return all;
}

inline bool is_control(const Pair& pair, const Variant& variant) {
  for (const Variant& control : pair.controls)
    if (control.name == variant.name) return true;
  return false;
}

// Returns the tolerances of a variant's outputs, its own or the pair's.
inline const Tolerances& tolerances_of(const Pair& pair, const Variant& variant) {
  return variant.tolerance.empty() ? pair.tolerance : variant.tolerance;
}

// Returns the first of the variants whose bits a variant is declared to have.
inline const Variant& first_of_same_bits(const Pair& pair, const Variant& variant) {
  if (!variant.same_bits_as.empty())
    for (const Variant* other : all_variants(pair))
      if (other->name == variant.same_bits_as && other != &variant) return first_of_same_bits(pair, *other);
  return variant;
}
// Whether two different variants are declared to have the same bits; that one variant repeats its own is not declared so.
inline bool same_bits_declared(const Pair& pair, const Variant& a, const Variant& b) {
  return a.name != b.name && first_of_same_bits(pair, a).name == first_of_same_bits(pair, b).name;
}

// Returns the variants among which one calls itself the fastest: those that it declares, and of x_tuned x.
inline std::vector<const Variant*> members_of_set(const Pair& pair, const Variant& best) {
  constexpr std::string_view tuned = "_tuned";
  const std::string_view plain = best.name.ends_with(tuned) ? best.name.substr(0, best.name.size() - tuned.size()) : "";
  std::vector<const Variant*> members = all_variants(pair);
  std::erase_if(members, [&](const Variant* each) {
    return each == &best || (each->name != plain && std::ranges::find(best.best_of, each->name) == std::end(best.best_of));
  });
  return members;
}

// Returns the name of the optimized variant that shows the pair's lesson.
inline std::string_view lesson_of(const Pair& pair) { return pair.lesson.empty() ? pair.optimized[0].name : pair.lesson; }

}  // namespace aisp::pair
