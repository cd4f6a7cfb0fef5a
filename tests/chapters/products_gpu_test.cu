// SPDX-License-Identifier: Apache-2.0
// The products of chapter 4's pairs, on the last GPU.
#include "ch04/products.hpp"

#include <cstdint>
#include <vector>

#include "device/gpu_test.hpp"

namespace aisp::ch04 {
namespace {

using bf16 = __nv_bfloat16;

class Products : public GpuTest<8> {};

// Small integers, so that sums are exact.
std::vector<bf16> integers(std::size_t count, unsigned step) {
  std::vector<bf16> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<bf16>(static_cast<float>(i * step % 7) - 3);
  return values;
}

template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : count_{values.size()} {
    check(cudaMalloc(&data_, count_ * sizeof(T)));
    check(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  T* get() const { return data_; }
  std::vector<T> values() const {
    std::vector<T> values(count_);
    check(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  std::size_t count_;
  T* data_ = nullptr;
};

template <class Out>
void expect_product(Cublas& cublas, const Product& p) {
  const auto a = integers(p.m * p.k, 3), b = integers(p.k * p.n, 5);
  const std::vector<Out> before(p.m * p.n, static_cast<Out>(2.0f));
  const OnDevice<bf16> on_device_a{a}, on_device_b{b};
  const OnDevice<Out> c{before};
  multiply(cublas, nullptr, p, on_device_a.get(), on_device_b.get(), c.get());
  check(cudaDeviceSynchronize());
  const std::vector<Out> found = c.values();
  for (std::size_t row = 0; row < p.m; ++row)
    for (std::size_t column = 0; column < p.n; ++column) {
      float sum = 2 * p.beta;
      for (std::size_t step = 0; step < p.k; ++step)
        sum += static_cast<float>(a[p.a_is_transposed ? step * p.m + row : row * p.k + step]) *
               static_cast<float>(b[p.b_is_transposed ? column * p.k + step : step * p.n + column]);
      ASSERT_EQ(static_cast<float>(found[row * p.n + column]), static_cast<float>(static_cast<Out>(sum)))
          << row << " " << column << " of " << p.a_is_transposed << p.b_is_transposed << " beta " << p.beta;
    }
}

TEST_F(Products, AreThoseOfTheirOrders) {
  if (!SharedLibrary::available(Library::cublas)) GTEST_SKIP() << "no cuBLAS";
  int gpus = 0;
  check(cudaGetDeviceCount(&gpus));
  OnGpu<Cublas> cublas{gpus - 1};
  int selected = -1;
  check(cudaGetDevice(&selected));
  EXPECT_EQ(selected, 0);
  const SelectedGpu last{gpus - 1};
  for (const bool a_is_transposed : {false, true})
    for (const bool b_is_transposed : {false, true}) {
      Product product{.m = 24, .n = 40, .k = 16, .a_is_transposed = a_is_transposed, .b_is_transposed = b_is_transposed};
      expect_product<bf16>(cublas, product);
      product.result = CUDA_R_32F, product.beta = 1;
      expect_product<float>(cublas, product);
    }
}

}  // namespace
}  // namespace aisp::ch04
