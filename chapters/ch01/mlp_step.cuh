// SPDX-License-Identifier: Apache-2.0
// One SGD step of a three-layer perceptron on the GPU, as 13 kernels: tanh after the first two layers, mean squared error, no
// biases. cuBLAS multiplies in TF32; the products that make the weights' gradients subtract them from the weights at once.
#pragma once
#include <aisp/device/reduce.cuh>
#include <aisp/libraries/cublas.hpp>

#include <array>
#include <cstddef>

namespace aisp::ch01::mlp {

constexpr int steps = 8, batch = 128, features = 512, classes = 512;
constexpr int batch_floats = batch * (features + classes);  // inputs, then targets
constexpr std::size_t batch_bytes = batch_floats * sizeof(float);
constexpr int outputs = batch * classes;
constexpr float rate = 4;  // the loss is a mean over 65536 values, so gradients are small
constexpr int threads = 256, loss_blocks = outputs / 4 / threads;

// State that the loss kernels hand on: losses[step] of the step that is next. Starts as zeros.
struct Progress {
  unsigned blocks_done;
  int step;
  float parts[loss_blocks];
  float losses[steps];
};

static __global__ __launch_bounds__(threads) void tanh_kernel(float4* h) {
  float4& x = h[blockIdx.x * threads + threadIdx.x];
  x = make_float4(tanhf(x.x), tanhf(x.y), tanhf(x.z), tanhf(x.w));
}

static __global__ __launch_bounds__(threads) void tanh_backward_kernel(float4* d, const float4* h) {
  const int i = blockIdx.x * threads + threadIdx.x;
  const float4 y = h[i], x = d[i];
  d[i] = make_float4(x.x * (1 - y.x * y.x), x.y * (1 - y.y * y.y), x.z * (1 - y.z * y.z), x.w * (1 - y.w * y.w));
}

// Replaces the outputs by the gradient of the mean squared error. The last block to finish adds up the parts of all, in order.
static __global__ __launch_bounds__(threads) void loss_kernel(float4* o, const float4* target, Progress* progress) {
  __shared__ float shared[device::largest_block_in_warps];
  __shared__ bool last;
  const int i = blockIdx.x * threads + threadIdx.x;
  const float4 x = o[i], y = target[i];
  const float4 d = make_float4(x.x - y.x, x.y - y.y, x.z - y.z, x.w - y.w);
  constexpr float scale = 2.0f / outputs;
  o[i] = make_float4(d.x * scale, d.y * scale, d.z * scale, d.w * scale);
  const float part = device::block_sum(d.x * d.x + d.y * d.y + d.z * d.z + d.w * d.w, shared);
  if (threadIdx.x == 0) {
    progress->parts[blockIdx.x] = part;
    __threadfence();
    last = atomicInc(&progress->blocks_done, loss_blocks - 1) == loss_blocks - 1;  // and back to zero for the next step
  }
  __syncthreads();
  if (!last) return;
  const float sum = device::block_sum(threadIdx.x < loss_blocks ? __ldcg(&progress->parts[threadIdx.x]) : 0.0f, shared);
  if (threadIdx.x == 0) progress->losses[progress->step++] = sum / outputs;
}

// The memory of one step.
struct Step {
  float* data;         // the batch
  float *h1, *h2, *o;  // activations; o becomes its own gradient
  float *d1, *d2;      // gradients of h1 and h2
  Progress* progress;
};

class Trainer {
 public:
  static constexpr Library library = Library::cublas;

  // hidden: a multiple of 128.
  explicit Trainer(int hidden) : hidden_{hidden} {}

  // weights: of the three layers; changed.
  void queue(cudaStream_t stream, const Step& s, const std::array<float*, 3>& weights) {
    const float* const x = s.data;
    cublas_.use(stream);
    forward(features, hidden_, x, weights[0], s.h1);
    activate(stream, s.h1);
    forward(hidden_, hidden_, s.h1, weights[1], s.h2);
    activate(stream, s.h2);
    forward(hidden_, classes, s.h2, weights[2], s.o);
    const auto* const targets = reinterpret_cast<const float4*>(x + batch * features);
    loss_kernel<<<loss_blocks, threads, 0, stream>>>(reinterpret_cast<float4*>(s.o), targets, s.progress);
    backward(hidden_, classes, s.o, weights[2], s.d2);  // before these weights change
    activate_backward(stream, s.d2, s.h2);
    descend(hidden_, classes, s.h2, s.o, weights[2]);
    backward(hidden_, hidden_, s.d2, weights[1], s.d1);
    activate_backward(stream, s.d1, s.h1);
    descend(hidden_, hidden_, s.h1, s.d2, weights[1]);
    descend(features, hidden_, x, s.d1, weights[0]);
    check(cudaGetLastError());
  }

 private:
  static constexpr float one = 1, zero = 0, descent = -rate;

  unsigned hidden_blocks() const { return static_cast<unsigned>(batch * hidden_ / (4 * threads)); }
  void activate(cudaStream_t stream, float* h) const {
    tanh_kernel<<<hidden_blocks(), threads, 0, stream>>>(reinterpret_cast<float4*>(h));
  }
  void activate_backward(cudaStream_t stream, float* d, const float* h) const {
    tanh_backward_kernel<<<hidden_blocks(), threads, 0, stream>>>(reinterpret_cast<float4*>(d),
                                                                  reinterpret_cast<const float4*>(h));
  }

  // All matrices are row-major, w[in][out]; to cuBLAS, which is column-major, each is its own transpose.
  void forward(int in, int out, const float* x, const float* w, float* y) const {  // y = x w
    check(gemm_(cublas_.handle(), CUBLAS_OP_N, CUBLAS_OP_N, out, batch, in, &one, w, out, x, in, &zero, y, out));
  }
  void backward(int in, int out, const float* dy, const float* w, float* dx) const {  // dx = dy w^T
    check(gemm_(cublas_.handle(), CUBLAS_OP_T, CUBLAS_OP_N, in, batch, out, &one, w, out, dy, out, &zero, dx, in));
  }
  void descend(int in, int out, const float* x, const float* dy, float* w) const {  // w -= rate x^T dy
    check(gemm_(cublas_.handle(), CUBLAS_OP_N, CUBLAS_OP_T, out, in, batch, &descent, dy, out, x, in, &one, w, out));
  }

  int hidden_;
  Cublas cublas_{CUBLAS_TF32_TENSOR_OP_MATH};
  decltype(&cublasSgemm_v2) gemm_ = Cublas::function<decltype(cublasSgemm_v2)>("cublasSgemm_v2");
};

}  // namespace aisp::ch01::mlp
