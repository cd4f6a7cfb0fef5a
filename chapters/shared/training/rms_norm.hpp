// SPDX-License-Identifier: Apache-2.0
// RMSNorm of rows, forward and backward: the host's side.
#pragma once
#include <aisp/device_attribute.hpp>
#include <aisp/launch.hpp>
#include <aisp/needs.hpp>
#include <aisp/setup.hpp>

#include <algorithm>

#include "row_kernels.cuh"

namespace aisp::training {

class RmsNorm {
 public:
  RmsNorm(Setup& setup, std::size_t rows, std::size_t width)
      : rows_{rows}, width_{width}, partials_{setup.scratch<float>(most_blocks * width)} {
    if (width % packet != 0 || width > widest_row) throw Unsupported{"rows of a norm have 8 to 8192 elements, by 8"};
  }
  void forward(Launch& launch, const bf16* x, const bf16* weights, bf16* out, float* inverse_rms) const {
    launch(rms_norm_kernel, {static_cast<unsigned>(rows_), row_threads}, packets(x), packets(weights), packets(out), inverse_rms,
           width_ / packet);
  }
  // dx = `passed` + the gradient of x, and the gradient of the weights. `passed` may be null, or dx itself.
  void backward(Launch& launch, const bf16* x, const bf16* weights, const float* inverse_rms, const bf16* dy, const bf16* passed,
                bf16* dx, float* d_weights) const {
    const unsigned blocks = std::min({static_cast<unsigned>(rows_), 2 * multiprocessors(), most_blocks});
    launch(rms_norm_backward_kernel, {blocks, row_threads}, packets(x), packets(weights), inverse_rms, packets(dy),
           packets(passed), packets(dx), reinterpret_cast<float4*>(partials_.get()), rows_, width_ / packet);
    launch(sum_partials_kernel, {static_cast<unsigned>((width_ + row_threads - 1) / row_threads), row_threads}, partials_.get(),
           d_weights, blocks, width_);
  }

 private:
  static constexpr unsigned most_blocks = 512;
  static const uint4* packets(const bf16* of) { return reinterpret_cast<const uint4*>(of); }
  static uint4* packets(bf16* of) { return reinterpret_cast<uint4*>(of); }

  std::size_t rows_, width_;
  Scratch<float> partials_;
};

}  // namespace aisp::training
