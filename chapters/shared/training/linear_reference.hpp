// SPDX-License-Identifier: Apache-2.0
// Elements of a linear layer's results in float64, on the CPU, for sampled outputs: x(row, in), w(out, in) and dy(row, out) give
// the operands, in the precision that a variant has them in.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>

#include "linear.hpp"

namespace aisp::training {

inline double rounded_to_bf16(double value) {
  return static_cast<double>(__bfloat162float(__float2bfloat16_rn(static_cast<float>(value))));
}
inline double rounded_to_f16(double value) {
  return static_cast<double>(__half2float(__float2half_rn(static_cast<float>(value))));
}

template <class X, class W>
double expected_y(const LinearShape& shape, std::size_t i, const X& x, const W& w) {
  double sum = 0;
  for (std::size_t k = 0; k < shape.in; ++k) sum += x(i / shape.out, k) * w(i % shape.out, k);
  return sum;
}
template <class Dy, class W>
double expected_dx(const LinearShape& shape, std::size_t i, const Dy& dy, const W& w) {
  double sum = 0;
  for (std::size_t out = 0; out < shape.out; ++out) sum += dy(i / shape.in, out) * w(out, i % shape.in);
  return sum;
}
template <class Dy, class X>
double expected_dw(const LinearShape& shape, std::size_t i, const Dy& dy, const X& x) {
  double sum = 0;
  for (std::size_t row = 0; row < shape.rows; ++row) sum += dy(row, i / shape.in) * x(row, i % shape.in);
  return sum;
}

}  // namespace aisp::training
