// SPDX-License-Identifier: Apache-2.0
// Values that are computed where they are read, for CUB's algorithms, which take iterators.
#pragma once
#include <cstddef>
#include <iterator>
#include <type_traits>

namespace aisp::ch06 {

// Its i-th value is function(i).
template <class Function>
class Generated {
 public:
  using iterator_category = std::random_access_iterator_tag;
  using value_type = std::invoke_result_t<Function, std::ptrdiff_t>;
  using difference_type = std::ptrdiff_t;
  using pointer = const value_type*;
  using reference = value_type;

  __host__ __device__ explicit Generated(Function function, std::ptrdiff_t index = 0) : function_{function}, index_{index} {}
  __host__ __device__ value_type operator*() const { return function_(index_); }
  __host__ __device__ value_type operator[](std::ptrdiff_t i) const { return function_(index_ + i); }
  __host__ __device__ Generated operator+(std::ptrdiff_t i) const { return Generated{function_, index_ + i}; }

 private:
  Function function_;
  std::ptrdiff_t index_;
};

}  // namespace aisp::ch06
