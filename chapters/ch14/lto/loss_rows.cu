// SPDX-License-Identifier: Apache-2.0
// The library's kernel as it is shipped: without the user's function, which is linked to it at run time.
#include "loss_rows.cuh"

extern "C" __device__ float user_loss(float a, float b);

extern "C" __global__ void __launch_bounds__(aisp::ch14::loss_threads)
    loss_rows_kernel(const uint4* a, const uint4* b, float* sums, unsigned row_packets) {
  aisp::ch14::sum_row(a, b, sums, row_packets, [](const uint4& as, const uint4& bs) {
    return aisp::ch14::loss_of_eight(as, bs, [](float x, float y) { return user_loss(x, y); });
  });
}
