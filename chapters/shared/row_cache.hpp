// SPDX-License-Identifier: Apache-2.0
// Values that a float64 reference needs of a whole row, computed once however many of its elements are compared.
#pragma once
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace aisp::shared {

template <class T>
class RowCache {
 public:
  // Inputs have changed.
  void forget(std::size_t rows) {
    done_ = std::make_unique<std::once_flag[]>(rows);
    values_.resize(rows);
  }
  // compute() gives the row's. From several threads.
  template <class Compute>
  const T& of(std::size_t row, Compute compute) const {
    std::call_once(done_[row], [&] { values_[row] = compute(); });
    return values_[row];
  }

 private:
  std::unique_ptr<std::once_flag[]> done_;
  mutable std::vector<T> values_;
};

}  // namespace aisp::shared
