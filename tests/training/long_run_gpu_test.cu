// SPDX-License-Identifier: Apache-2.0
// Two hundred steps of a linear layer in narrow types. The loss that they reach is compared with that of the same steps in
// float64: the error of one step says nothing about where many lead.
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <aisp/libraries/cublaslt.hpp>

#include <memory>
#include <type_traits>
#include <vector>

#include "device/gpu_test.hpp"
#include "lt_test.hpp"
#include "plain_setup.hpp"
#include "training/casts.cuh"
#include "training/linear.hpp"
#include "values.hpp"

namespace aisp::training::test {
namespace {

constexpr LinearShape shape{512, 64, 32};
constexpr int steps = 200;
constexpr std::size_t of_x = shape.rows * shape.in, of_w = shape.out * shape.in, of_y = shape.rows * shape.out;
// The loss is a mean over rows and columns, and a part of that of 1024 batches, so that its gradients are small.
constexpr double share = 1.0 / (of_y * 1024), learning_rate = 0.02 * shape.out * 1024;
constexpr unsigned threads = 256;

unsigned blocks(std::size_t count) { return static_cast<unsigned>((count + threads - 1) / threads); }

__global__ void residual_kernel(const float* y, const float* targets, float* dy, float scale) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i < of_y) dy[i] = (y[i] - targets[i]) * (scale * static_cast<float>(share));
}
__global__ void sgd_kernel(float* weights, const float* gradients, float rate) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i < of_w) weights[i] = fmaf(-rate, gradients[i], weights[i]);
}
// Rounds to values of the code times a power of two, with which the largest magnitude does not saturate. One block.
template <class Code>
__global__ void through_code_kernel(const float* from, float* to, unsigned count, float largest_code) {
  float largest = 0;
  for (unsigned i = 0; i < count; ++i) largest = fmaxf(largest, fabsf(from[i]));
  const float scale = largest > 0 ? exp2f(floorf(log2f(largest_code / largest))) : 1;
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) to[i] = static_cast<float>(Code{from[i] * scale}) / scale;
}

struct Options {
  float loss_scale = 1;
  bool keeps_master = true, is_fp8 = false;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
};

class LongRun : public LtTest<9> {
 protected:
  void SetUp() override {
    LtTest<9>::SetUp();
    if (IsSkipped()) return;
    // A layer that another one's results are to be learned by, which no weights give exactly.
    const Values other = drawn(of_w, 3, 1 / std::sqrt(static_cast<double>(shape.in))), noise = drawn(of_y, 4, 0.05);
    targets_ = product(other);
    for (std::size_t i = 0; i < of_y; ++i) targets_[i] += noise[i];
  }

  Values product(const Values& weights) const {
    Values y(of_y);
    for (std::size_t row = 0; row < shape.rows; ++row)
      for (std::size_t o = 0; o < shape.out; ++o)
        for (std::size_t k = 0; k < shape.in; ++k) y[row * shape.out + o] += x_[row * shape.in + k] * weights[o * shape.in + k];
    return y;
  }
  double loss(const Values& weights) const {
    const Values y = product(weights);
    double sum = 0;
    for (std::size_t i = 0; i < of_y; ++i) sum += (y[i] - targets_[i]) * (y[i] - targets_[i]);
    return sum / 2 / of_y;
  }
  double loss_in_float64() const {
    Values weights = weights_;
    for (int step = 0; step < steps; ++step) {
      Values dy = product(weights);
      for (std::size_t i = 0; i < of_y; ++i) dy[i] = (dy[i] - targets_[i]) * share;
      for (std::size_t o = 0; o < shape.out; ++o)
        for (std::size_t row = 0; row < shape.rows; ++row)
          for (std::size_t k = 0; k < shape.in; ++k)
            weights[o * shape.in + k] -= learning_rate * dy[row * shape.out + o] * x_[row * shape.in + k];
    }
    return loss(weights);
  }

  // Steps of products whose operands are T, with sums, gradients of weights and the update in fp32.
  template <class T>
  double loss_after_steps(const Options& options) {
    constexpr cudaDataType_t type = std::is_same_v<T, float> ? CUDA_R_32F : std::is_same_v<T, __half> ? CUDA_R_16F : CUDA_R_16BF;
    const Linear linear{*setup_, *lt_, shape, {.operands = type, .activations = CUDA_R_32F, .compute = options.compute}};
    const auto in_fp32 = [](const Values& values) { return OnGpu<float>{{values.begin(), values.end()}}; };
    const OnGpu<float> x = in_fp32(x_), weights = in_fp32(weights_), targets = in_fp32(targets_), y = in_fp32(targets_),
                       dy = in_fp32(targets_), dw = in_fp32(weights_), coded = in_fp32(x_);
    const OnGpu<T> narrow_x{std::vector<T>(of_x)}, narrow_w{std::vector<T>(of_w)}, narrow_dy{std::vector<T>(of_y)};
    const auto to_narrow = [&]<class Code>(const OnGpu<float>& from, const OnGpu<T>& to, std::size_t count, Code, float largest) {
      const float* values = from.get();
      if (options.is_fp8) {
        through_code_kernel<Code><<<1, 1024>>>(values, coded.get(), static_cast<unsigned>(count), largest);
        values = coded.get();
      }
      if constexpr (std::is_same_v<T, float>) check(cudaMemcpy(to.get(), values, count * sizeof(T), cudaMemcpyDeviceToDevice));
      else
        narrow_kernel<T><<<cast_blocks(count), cast_threads>>>(reinterpret_cast<const WidePacket*>(values),
                                                               reinterpret_cast<Packet<T>*>(to.get()), cast_packets(count));
    };
    const auto narrow_weights = [&] { to_narrow(weights, narrow_w, of_w, __nv_fp8_e4m3{}, 448); };
    to_narrow(x, narrow_x, of_x, __nv_fp8_e4m3{}, 448);
    for (int step = 0; step < steps; ++step) {
      narrow_weights();
      linear.forward(nullptr, narrow_x.get(), narrow_w.get(), y.get());
      residual_kernel<<<blocks(of_y), threads>>>(y.get(), targets.get(), dy.get(), options.loss_scale);
      to_narrow(dy, narrow_dy, of_y, __nv_fp8_e5m2{}, 57344);
      linear.weight_gradient(nullptr, narrow_dy.get(), narrow_x.get(), dw.get());
      sgd_kernel<<<blocks(of_w), threads>>>(weights.get(), dw.get(), static_cast<float>(learning_rate) / options.loss_scale);
      if constexpr (!std::is_same_v<T, float>)
        if (!options.keeps_master) {
          narrow_weights();
          widen_kernel<T><<<cast_blocks(of_w), cast_threads>>>(reinterpret_cast<const Packet<T>*>(narrow_w.get()),
                                                               reinterpret_cast<WidePacket*>(weights.get()), cast_packets(of_w));
        }
    }
    check(cudaDeviceSynchronize());
    return loss(wide(weights.host()));
  }

  const Values x_ = drawn(of_x, 1, 1), weights_ = drawn(of_w, 2, 1 / std::sqrt(static_cast<double>(shape.in)));
  Values targets_;
};

TEST_F(LongRun, LossesOfNarrowTypesAreNearThatOfFloat64) {
  const double wanted = loss_in_float64(), first = loss(weights_);
  EXPECT_LT(wanted, first / 10);
  const auto expect_within = [&](const char* type, double found, double limit) {
    EXPECT_NEAR(found / wanted, 1, limit) << type;
    RecordProperty(type, std::to_string(found / wanted));
  };
  expect_within("fp32", loss_after_steps<float>({}), 1e-4);
  expect_within("tf32", loss_after_steps<float>({.compute = CUBLAS_COMPUTE_32F_FAST_TF32}), 2e-3);
  expect_within("bf16 with master weights", loss_after_steps<__nv_bfloat16>({}), 1e-2);
  expect_within("fp16 with a scaled loss", loss_after_steps<__half>({.loss_scale = 65536}), 2e-3);
  expect_within("fp8 with master weights", loss_after_steps<__nv_bfloat16>({.is_fp8 = true}), 0.2);
}

// Small updates of bf16 weights are lost, and small gradients are zeros in fp16.
TEST_F(LongRun, LossesStayBehindWithoutMasterWeightsOrWithoutALossScale) {
  const double wanted = loss_in_float64();
  const double no_master = loss_after_steps<__nv_bfloat16>({.keeps_master = false}), unscaled = loss_after_steps<__half>({});
  EXPECT_GT(no_master, 1.2 * wanted);
  EXPECT_GT(unscaled, 1.2 * wanted);
  RecordProperty("no_master", std::to_string(no_master / wanted));
  RecordProperty("unscaled", std::to_string(unscaled / wanted));
}

}  // namespace
}  // namespace aisp::training::test
