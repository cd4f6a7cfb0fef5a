// SPDX-License-Identifier: Apache-2.0
// The smallest program with everything that tcgen05 needs: tensor memory allocated, operands in swizzled shared memory, a product
// started by one thread, its end seen at a barrier, sums fetched by four warps. scripts/tcgen05-probe compiles it without most of
// aisp.
#include <cuda_bf16.h>
#include <aisp/device/fence.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tcgen05.cuh>

#include <memory>

#include "machine/doctor/tcgen05_launch.hpp"

namespace {

using aisp::machine::Tcgen05Product;
using bf16 = __nv_bfloat16;
namespace device = aisp::device;

constexpr int m = Tcgen05Product::m, n = Tcgen05Product::n, k = Tcgen05Product::k, row_bytes = k * sizeof(bf16);
constexpr unsigned columns = n;
static_assert(row_bytes == 128, "a row of the swizzle");

// The element's place in rows of 128 bytes with the 128-byte swizzle.
__device__ bf16& element(unsigned char* tile, int row, int depth) {
  return *reinterpret_cast<bf16*>(tile + row * row_bytes + (depth / 8 ^ row % 8) * 16 + depth % 8 * 2);
}

__global__ __launch_bounds__(m) void product_kernel(const bf16* a, const bf16* b, float* c) {
  __shared__ __align__(1024) unsigned char left[m * row_bytes];
  __shared__ __align__(1024) unsigned char right[n * row_bytes];
  __shared__ std::uint64_t done;
  __shared__ std::uint32_t tensor_memory;
  const int t = static_cast<int>(threadIdx.x), warp = __shfl_sync(~0u, t / 32, 0);
  if (t == 0) {
    device::barrier_init(&done, 1);
    device::fence_barrier_init();
  }
  if (warp == 0) {
    device::tensor_allocate(&tensor_memory, columns);
    device::tensor_allocate_no_more();
  }
  for (int depth = 0; depth < k; ++depth) {
    element(left, t, depth) = a[t * k + depth];
    if (t < n) element(right, t, depth) = b[t * k + depth];
  }
  device::fence_proxy_async_shared();
  device::tensor_fence_before();
  __syncthreads();
  device::tensor_fence_after();
  if (warp == 0 && device::elect_thread()) {
    constexpr std::uint32_t instruction = device::tensor_instruction(device::TensorKind::bf16, m, n);
    for (int step = 0; step < row_bytes; step += 32)
      device::tensor_multiply<device::TensorKind::bf16>(tensor_memory, device::advance(device::tensor_operand(left), step),
                                                        device::advance(device::tensor_operand(right), step), instruction,
                                                        step > 0);
    device::tensor_commit(&done);
  }
  __syncwarp();
  device::barrier_wait(&done, 0);
  device::tensor_fence_after();
  for (int column = 0; column < n; column += 32) {
    float sums[32];
    device::tensor_load(sums, tensor_memory + (static_cast<std::uint32_t>(warp * 32) << 16) + static_cast<std::uint32_t>(column));
    device::tensor_wait_loaded(sums);
#pragma unroll
    for (int i = 0; i < 32; ++i) c[t * n + column + i] = sums[i];
  }
  device::tensor_fence_before();
  __syncthreads();
  device::tensor_fence_after();
  if (warp == 0) device::tensor_free(tensor_memory, columns);
}

struct FreeDevice {
  void operator()(void* pointer) const { cudaFree(pointer); }
};
template <class T>
using DeviceMemory = std::unique_ptr<T, FreeDevice>;

template <class T>
cudaError_t allocate(DeviceMemory<T>& memory, std::size_t count) {
  void* raw = nullptr;
  const cudaError_t status = cudaMalloc(&raw, count * sizeof(T));
  memory.reset(static_cast<T*>(raw));
  return status;
}

cudaError_t upload(DeviceMemory<bf16>& memory, int rows, int (*value)(int, int)) {
  std::vector<bf16> host;
  for (int row = 0; row < rows; ++row)
    for (int depth = 0; depth < k; ++depth) host.push_back(__float2bfloat16(static_cast<float>(value(row, depth))));
  const cudaError_t status = allocate(memory, host.size());
  return status == cudaSuccess ? cudaMemcpy(memory.get(), host.data(), host.size() * sizeof(bf16), cudaMemcpyHostToDevice)
                               : status;
}

}  // namespace

namespace aisp::machine {

cudaError_t multiply_by_tcgen05(std::vector<float>& c) {
  DeviceMemory<bf16> a, b;
  DeviceMemory<float> sums;
  c.assign(static_cast<std::size_t>(m) * n, 0);
  cudaError_t status = upload(a, m, &Tcgen05Product::a);
  if (status == cudaSuccess) status = upload(b, n, &Tcgen05Product::b);
  if (status == cudaSuccess) status = allocate(sums, c.size());
  if (status != cudaSuccess) return status;
  product_kernel<<<1, m>>>(a.get(), b.get(), sums.get());
  status = cudaGetLastError();
  return status == cudaSuccess ? cudaMemcpy(c.data(), sums.get(), c.size() * sizeof(float), cudaMemcpyDeviceToHost) : status;
}

std::string judge_product(const std::vector<float>& c) {
  using P = Tcgen05Product;
  constexpr std::size_t elements = static_cast<std::size_t>(P::m) * P::n;
  if (c.size() != elements)
    return "the product has " + std::to_string(c.size()) + " of " + std::to_string(elements) + " elements";
  for (int row = 0; row < P::m; ++row)
    for (int column = 0; column < P::n; ++column) {
      int sum = 0;
      for (int depth = 0; depth < P::k; ++depth) sum += P::a(row, depth) * P::b(column, depth);
      const float found = c[static_cast<std::size_t>(row) * P::n + static_cast<std::size_t>(column)];
      if (found != static_cast<float>(sum))
        return "row " + std::to_string(row) + ", column " + std::to_string(column) + " is " + std::to_string(found) +
               " instead of " + std::to_string(sum);
    }
  return {};
}

}  // namespace aisp::machine
