// SPDX-License-Identifier: Apache-2.0
// Row-major matrices in float64 on the host, for the references of small shapes.
#pragma once
#include <aisp/setup.hpp>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

namespace aisp::ch04::float64 {

using Matrix = std::vector<double>;

// Returns the size of this name, and at most `most` while outputs are compared with the reference.
inline std::size_t size_of(const Setup& setup, std::string_view name, std::size_t most) {
  return setup.shape(setup.size(name), std::min(setup.size(name), most));
}

// Returns what the buffer was filled with, `count` elements from `first` on.
template <class T>
Matrix values(const Input<T>& of, std::size_t first, std::size_t count) {
  Matrix result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = of.host(first + i);
  return result;
}

inline Matrix transposed(const Matrix& a, std::size_t rows, std::size_t columns) {
  Matrix result(a.size());
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t column = 0; column < columns; ++column) result[column * rows + row] = a[row * columns + column];
  return result;
}

// Returns A B, where A is [m][k] and B is [k][n].
inline Matrix product(const Matrix& a, const Matrix& b, std::size_t m, std::size_t n, std::size_t k) {
  Matrix c(m * n);
  for (std::size_t row = 0; row < m; ++row)
    for (std::size_t step = 0; step < k; ++step) {
      const double factor = a[row * k + step];
      const double* const from = b.data() + step * n;
      double* const to = c.data() + row * n;
      for (std::size_t column = 0; column < n; ++column) to[column] += factor * from[column];
    }
  return c;
}

// Returns element (row, column) of A^T B, where A is [k][m] and B is [k][n].
inline double element(const Matrix& a, const Matrix& b, std::size_t m, std::size_t n, std::size_t row, std::size_t column) {
  double sum = 0;
  for (std::size_t step = 0; step * m < a.size(); ++step) sum += a[step * m + row] * b[step * n + column];
  return sum;
}

}  // namespace aisp::ch04::float64
