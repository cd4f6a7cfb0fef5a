// SPDX-License-Identifier: Apache-2.0
// Maps a size known at run time to code that was compiled for it.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace aisp {

namespace detail {

// Throws Unsupported: "width must be 3, 5 or 7, not 4; nothing else is compiled".
[[noreturn]] void not_compiled_for(std::string_view name, std::uint64_t value, std::initializer_list<std::uint64_t> compiled);

template <auto first, auto... rest, class Run>
auto dispatch_among(std::uint64_t value, const Run& run) {
  if constexpr (sizeof...(rest) > 0)
    if (value != static_cast<std::uint64_t>(first)) return dispatch_among<rest...>(value, run);
  return run.template operator()<first>();
}

}  // namespace detail

// Returns run.operator()<n>(), with n the one of `values` that the size `name` has: dispatch<3, 5, 7>("width", width_, [&]<int
// width>() { launch(filter_kernel<width>, grid(), in_, out_); }). Throws Unsupported for any other, so that the variant is
// skipped with a sentence that names the size and the values.
template <auto... values, class Run>
auto dispatch(std::string_view name, std::uint64_t value, const Run& run) {
  static_assert(sizeof...(values) > 0, "a size has values");
  if (!((value == static_cast<std::uint64_t>(values)) || ...))
    detail::not_compiled_for(name, value, {static_cast<std::uint64_t>(values)...});
  return detail::dispatch_among<values...>(value, run);
}

}  // namespace aisp
