// SPDX-License-Identifier: Apache-2.0
// What the GPU pairs of the self-test share: out[i] = 2 * in[i] on the GPU, done honestly. Each pair misbehaves in one way of its
// own.
#pragma once
#include <aisp/selftest.hpp>

#include <cuda_runtime.h>

namespace aisp::selftest {

inline constexpr unsigned block_threads = 256;

// Templates, so that every pair may have its own copy.
template <int passes>
__global__ void double_kernel(const float* in, float* out, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const volatile float* from = in + i;
  volatile float* to = out + i;
  for (int pass = 0; pass < passes; ++pass) *to = 2 * *from;
}

template <int = 0>
__global__ void set_kernel(float* out, float value, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i] = value;
}

// Keeps one SM busy for so long, and ends by itself also where nobody stops it.
template <int = 0>
__global__ void spin_kernel(unsigned long long nanoseconds) {
  unsigned long long start = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now - start < nanoseconds);
}

class GpuDoubling : public Workload {
 public:
  static constexpr Device device = Device::gpu;

  explicit GpuDoubling(Setup& setup, std::size_t full = std::size_t{4} << 20, Memory input = Memory::device)
      : count_{setup.scaled(full, 1024)},
        in_{setup.input<float>(count_, uniform(-1, 1), {.memory = input})},
        out_{setup.output<float>(count_)} {}

  Cost cost() const override {
    return {.flops = static_cast<double>(count_), .bytes = static_cast<double>(in_.bytes() + out_.bytes())};
  }
  double expected(std::size_t index) const override { return 2 * in_.host(index); }

  // The same eight times over, so that `doubled` is clearly faster.
  void slow(Launch& launch) { double_kernel<8><<<blocks(), block_threads, 0, launch.stream>>>(in_, out_, count_); }
  void doubled(Launch& launch) { double_on(launch.stream, count_); }

 protected:
  void double_on(cudaStream_t stream, std::size_t count) {
    double_kernel<1><<<blocks(), block_threads, 0, stream>>>(in_, out_, count);
  }
  void set(std::size_t first, float value, std::size_t count, cudaStream_t stream) {
    set_kernel<><<<static_cast<unsigned>((count + block_threads - 1) / block_threads), block_threads, 0, stream>>>(out_ + first,
                                                                                                                   value, count);
  }
  static void spin(unsigned long long nanoseconds, cudaStream_t stream) { spin_kernel<><<<1, 1, 0, stream>>>(nanoseconds); }
  unsigned blocks() const { return static_cast<unsigned>((count_ + block_threads - 1) / block_threads); }

  std::size_t count_;
  Input<float> in_;
  Output<float> out_;
};

// Device memory of the workload's own, which the harness knows nothing of.
class OwnMemory {
 public:
  explicit OwnMemory(std::size_t bytes) : bytes_{bytes} { check(cudaMalloc(&data_, bytes)); }
  ~OwnMemory() { cudaFree(data_); }
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;
  void keep(const void* from, cudaStream_t stream) {
    check(cudaMemcpyAsync(data_, from, bytes_, cudaMemcpyDeviceToDevice, stream));
  }
  template <class T>
  T* get() const {
    return static_cast<T*>(data_);
  }
  void give(void* to, cudaStream_t stream) { check(cudaMemcpyAsync(to, data_, bytes_, cudaMemcpyDeviceToDevice, stream)); }

 private:
  std::size_t bytes_;
  void* data_ = nullptr;
};

}  // namespace aisp::selftest
