// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <initializer_list>
#include <utility>

namespace aisp {

// A few values of a type that may still be incomplete; std::vector's header would cost each pair a third of its compile time.
template <class T>
class List {
 public:
  List() = default;
  List(std::initializer_list<T> values) { assign(values.begin(), values.end()); }
  template <class Range>
  requires requires(const Range& range) { range.begin() != range.end(); }
  explicit(false) List(const Range& range) { assign(range.begin(), range.end()); }
  List(const List& other) { assign(other.begin(), other.end()); }
  List(List&& other) noexcept : values_{std::exchange(other.values_, nullptr)}, count_{std::exchange(other.count_, 0)} {}
  List& operator=(List other) noexcept {
    std::swap(values_, other.values_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~List() { delete[] values_; }

  T* begin() { return values_; }
  T* end() { return values_ + count_; }
  const T* begin() const { return values_; }
  const T* end() const { return values_ + count_; }
  std::size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }

 private:
  template <class Iterator>
  void assign(Iterator first, Iterator last) {
    std::size_t count = 0;
    for (Iterator each = first; each != last; ++each) ++count;
    if (count == 0) return;
    values_ = new T[count];
    for (; count_ < count; ++count_, ++first) values_[count_] = *first;
  }

  T* values_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace aisp
