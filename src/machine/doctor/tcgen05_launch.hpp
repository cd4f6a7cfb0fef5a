// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include <string>
#include <vector>

namespace aisp::machine {

// The probe's product: C[m][n], the sum of A[m][k] B[n][k] over k, of small integers, exact in bf16 and fp32.
struct Tcgen05Product {
  static constexpr int m = 128, n = 64, k = 64;
  static int a(int row, int depth) { return (row + 3 * depth) % 7 - 3; }
  static int b(int column, int depth) { return (2 * column + depth) % 5 - 2; }
};

// On the present device by tcgen05: m x n sums, row by row.
cudaError_t multiply_by_tcgen05(std::vector<float>& c);

// Empty when `c` is that product; otherwise what is wrong first.
std::string judge_product(const std::vector<float>& c);

}  // namespace aisp::machine
