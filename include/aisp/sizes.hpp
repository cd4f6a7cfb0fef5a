// SPDX-License-Identifier: Apache-2.0
// The sizes of a pair that --size may set, and named choices of them that --sweep measures one after the other.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace aisp {

// A size that Setup::size(name) returns to the workload's constructor: the value of --size, else `full`, times the scale of the
// run if it scales. Always a multiple of `multiple`, so that a kernel may rely on it, and from `least` to `most`.
struct Size {
  std::string_view name;  // lower case, digits, underscores
  std::uint64_t full = 0;
  std::uint64_t multiple = 1;
  std::uint64_t least = 1;  // 0: the empty case may be set as well
  std::uint64_t most = 1u << 16;
  bool scales = true;  // false: a count that --scale leaves alone
};

// A size that is 0 or 1, 0 unless it is set.
constexpr Size option(std::string_view name) { return {.name = name, .full = 0, .most = 1, .scales = false}; }
// Returns the smallest value that may be set: a multiple, and 0 if that is the full size.
constexpr std::uint64_t least_value(const Size& size) {
  return size.full == 0 ? 0 : (size.least + size.multiple - 1) / size.multiple * size.multiple;
}

struct Case {
  std::string_view name;   // as a variant's
  std::string_view sizes;  // as for --size: "m=4096,n=4096"
};

// A list with storage of its own, so that it can be part of a constant: Sizes and Cases.
template <class T, std::size_t most>
class ShortList {
 public:
  static constexpr std::size_t capacity = most;
  constexpr ShortList() = default;
  template <std::size_t count>
  constexpr explicit ShortList(const T (&list)[count]) : count_{count} {
    static_assert(count <= most, "more than a pair may declare");
    for (std::size_t i = 0; i < count; ++i) items_[i] = list[i];
  }
  constexpr const T* begin() const { return items_; }
  constexpr const T* end() const { return items_ + count_; }
  constexpr std::size_t size() const { return count_; }
  constexpr bool empty() const { return count_ == 0; }

  T items_[most]{};

 private:
  std::size_t count_ = 0;
};
using Sizes = ShortList<Size, 8>;
using Cases = ShortList<Case, 12>;

namespace detail {
constexpr bool is_plain_name(std::string_view name) {
  for (const char c : name)
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')) return false;
  return !name.empty();
}
void declaration_is_wrong(const char* why);  // not constexpr: reaching it does not compile
}  // namespace detail

template <std::size_t count>
consteval Sizes sizes(const Size (&list)[count]) {
  for (const Size& size : list) {
    if (!detail::is_plain_name(size.name)) detail::declaration_is_wrong("a size's name is lower case, digits, underscores");
    if (size.multiple == 0 || size.full % size.multiple != 0 || size.full < least_value(size) || size.full > size.most)
      detail::declaration_is_wrong("a full size is a multiple of its multiple, not below the least and not above the most");
  }
  return Sizes{list};
}

template <std::size_t count>
consteval Cases cases(const Case (&list)[count]) {
  for (const Case& each : list)
    if (!detail::is_plain_name(each.name)) detail::declaration_is_wrong("a case's name is lower case, digits, underscores");
  return Cases{list};
}

}  // namespace aisp
