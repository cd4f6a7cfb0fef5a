// SPDX-License-Identifier: Apache-2.0
// The price of quantized operands: how far a product is from that of the operands before they were quantized. Inputs of pairs are
// codes, and many originals have the same code. One is drawn for each, evenly from all that round to it, or, for weights that
// pruning dropped, from what is smaller than those kept. Some 4096 elements of their product are computed in float64.
#pragma once
#include <aisp/launch.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace aisp::ch19 {

// Codes as whole numbers in the order of their values; a code's last bits are its magnitude, and one above them its sign.
template <int exponent_bits, int mantissa_bits, int exponent_bias, int largest_>
struct FloatCodes {
  static constexpr int smallest = -largest_, largest = largest_, bits = 1 + exponent_bits + mantissa_bits;
  static __device__ int number(unsigned code) {
    const int magnitude = static_cast<int>(code & ((1u << (bits - 1)) - 1));
    return (code >> (bits - 1) & 1) != 0 ? -magnitude : magnitude;
  }
  static __device__ double value(int number) {
    const int magnitude = abs(number), exponent = max(magnitude >> mantissa_bits, 1),
              significand = magnitude - ((exponent - 1) << mantissa_bits);
    return copysign(scalbn(static_cast<double>(significand), exponent - exponent_bias - mantissa_bits), number);
  }
};
using E2m1 = FloatCodes<2, 1, 1, 7>;
using E3m2 = FloatCodes<3, 2, 3, 31>;
using E4m3 = FloatCodes<4, 3, 7, 126>;
struct Int4Codes {
  static constexpr int smallest = -8, largest = 7, bits = 4;
  static __device__ int number(unsigned code) { return static_cast<int>(code ^ 8) - 8; }
  static __device__ double value(int number) { return number; }
};

// From 0 to 1, the same whenever it is asked for.
__device__ inline double drawn_at(std::uint64_t seed, std::size_t place) {
  return static_cast<double>(random_bits(seed, place) >> 11) * 0x1p-53;
}

// Rows of codes, of which each group has a scale. Scales are made for the largest value of a group, so that nothing is beyond the
// first code and the last.
template <class Format, class Scale>
struct QuantizedRows {
  const void* codes;  // two in a byte if they have four bits
  std::size_t k;
  const Scale* scales;  // null: none
  std::size_t rows_of_scale, k_of_scale, row_stride, k_stride;
  double factor = 1;
  std::uint64_t seed = 1;

  __device__ double operator()(std::size_t row, std::size_t at_k) const {
    const std::size_t at = row * k + at_k;
    const auto* const bytes = static_cast<const std::uint8_t*>(codes);
    const int number = Format::number(Format::bits == 4 ? bytes[at / 2] >> at % 2 * 4 & 15u : bytes[at]);
    const double value = Format::value(number),
                 least = number > Format::smallest ? (Format::value(number - 1) + value) / 2 : value,
                 most = number < Format::largest ? (Format::value(number + 1) + value) / 2 : value;
    const double scale =
        scales == nullptr
            ? 1
            : static_cast<double>(static_cast<float>(scales[row / rows_of_scale * row_stride + at_k / k_of_scale * k_stride]));
    return (least + drawn_at(seed, at) * (most - least)) * scale * factor;
  }
};

// Rows that are as they were.
template <class T>
struct PlainRows {
  const T* values;
  std::size_t k;
  __device__ double operator()(std::size_t row, std::size_t at_k) const {
    return static_cast<double>(static_cast<float>(values[row * k + at_k]));
  }
};

// Weights of a normal distribution, of which each four neighbours have lost the two smaller ones: these were anywhere between the
// magnitudes of those kept, as the distribution has it. Four with other than two left are as they were.
template <class T>
struct PrunedRows {
  const T* values;
  std::size_t k;
  __device__ double operator()(std::size_t row, std::size_t at_k) const {
    const std::size_t at = row * k + at_k;
    const T* const four = values + at / 4 * 4;
    int kept = 0;
    double smallest = INFINITY;
    for (int i = 0; i < 4; ++i) {
      const double magnitude = fabs(static_cast<double>(static_cast<float>(four[i])));
      if (magnitude == 0) continue;
      ++kept;
      smallest = min(smallest, magnitude);
    }
    const auto value = static_cast<double>(static_cast<float>(values[at]));
    if (value != 0 || kept != 2) return value;
    return normcdfinv(0.5 + (drawn_at(1, at) - 0.5) * erf(smallest * 0.7071067811865476));
  }
};

// Element (row, column) of a result is at row * row_stride + column * column_stride.
template <class T>
struct ResultAt {
  const T* values;
  std::size_t row_stride, column_stride;
};

namespace detail {

inline constexpr unsigned error_threads = 128;
inline constexpr std::size_t most_samples = 4096, most_columns = 64;

// A block has one element. Writes the squares of its error and of itself.
template <class Rows, class Columns, class T>
static __global__ __launch_bounds__(error_threads) void quantization_error_kernel(Rows rows, Columns columns, ResultAt<T> result,
                                                                                  std::size_t k, std::size_t row_step,
                                                                                  std::size_t column_step, double2* squares) {
  __shared__ double parts[error_threads];
  const std::size_t row = blockIdx.x * row_step, column = blockIdx.y * column_step;
  double sum = 0;
  for (std::size_t i = threadIdx.x; i < k; i += error_threads) sum = fma(rows(row, i), columns(column, i), sum);
  parts[threadIdx.x] = sum;
  for (unsigned half = error_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  if (threadIdx.x != 0) return;
  const double error =
      static_cast<double>(static_cast<float>(result.values[row * result.row_stride + column * result.column_stride])) - parts[0];
  squares[blockIdx.x + std::size_t{blockIdx.y} * gridDim.x] = make_double2(error * error, parts[0] * parts[0]);
}

}  // namespace detail

// The metric `quantization_error` of a pair's variants: measured in validate(), which sees a result, and reported with each
// sample.
class QuantizationError {
 public:
  explicit QuantizationError(Setup& setup) : squares_{setup.scratch<double2>(detail::most_samples, {.name = "squared errors"})} {}

  // Takes rows whose number is divisible by `multiple`, as others may be of another scale.
  template <class Rows, class Columns, class T>
  void measure(std::string_view variant, const Rows& rows, std::size_t row_count, const Columns& columns,
               std::size_t column_count, std::size_t k, const ResultAt<T>& result, std::size_t multiple = 1) {
    const std::size_t of_columns = std::min(column_count, detail::most_columns),
                      of_rows = std::min((row_count + multiple - 1) / multiple, detail::most_samples / of_columns),
                      row_step = std::max<std::size_t>(row_count / multiple / of_rows, 1) * multiple;
    const dim3 grid{static_cast<unsigned>(of_rows), static_cast<unsigned>(of_columns)};
    launch_kernel(nullptr, detail::quantization_error_kernel<Rows, Columns, T>,
                  {.blocks = grid, .threads = detail::error_threads}, rows, columns, result, k, row_step,
                  column_count / of_columns, squares_.get());
    std::vector<double2> squares(std::size_t{grid.x} * grid.y);
    check(cudaMemcpy(squares.data(), squares_, squares.size() * sizeof(double2), cudaMemcpyDeviceToHost));
    double error = 0, all = 0;
    for (const double2& of_one : squares) error += of_one.x, all += of_one.y;
    errors_[std::string{variant}] = all > 0 ? std::sqrt(error / all) : 0;
  }
  void report(std::string_view variant, Metrics& metrics) const {
    const auto error = errors_.find(variant);
    if (error != errors_.end()) metrics.report("quantization_error", 100 * error->second, "%", Metrics::Better::lower);
  }

 private:
  Scratch<double2> squares_;
  std::map<std::string, double, std::less<>> errors_;  // by variant
};

}  // namespace aisp::ch19
