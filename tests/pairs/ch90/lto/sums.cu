// SPDX-License-Identifier: Apache-2.0
// A kernel that is linked at run time with the function it sums up.
extern "C" __device__ float term(float x);

extern "C" __global__ void sum_kernel(const float* values, float* sums, unsigned count) {
  float sum = 0;
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) sum += term(values[i]);
  sums[threadIdx.x] = sum;
}
