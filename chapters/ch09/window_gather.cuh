// SPDX-License-Identifier: Apache-2.0
// Tiles of a convolution's operands, copied by the threads of a block out of images and filter into swizzled shared memory.
#pragma once
#include <aisp/device/async_copy.cuh>

#include <cuda_bf16.h>

#include <cstddef>

namespace aisp::ch09::conv {

using bf16 = __nv_bfloat16;
constexpr int filter = 3, taps = filter * filter;
constexpr int packet = 8;  // channels in 16 bytes
constexpr int step_channels = 64, row_bytes = 128, row_packets = row_bytes / 16;

// images [image][y][x][channel].
struct Images {
  int height, width, channels, pixels;  // pixels: of all images together
};

// A tile is 128 pixels by `tile_n` channels. Stages in shared memory: 128 rows of 64 channels of one tap, and the filter's rows
// for them. Rows have 128 bytes, and 16-byte chunk c of row r lies at c ^ r % 8, where neither ldmatrix nor wgmma nor the copies
// meet a bank twice.
constexpr int tile_m = 128, a_bytes = tile_m * row_bytes;
template <int tile_n>
constexpr int stage_bytes = a_bytes + tile_n* row_bytes;

// A block's copies, stage after stage. Pixels that follow one another lie after one another in memory, and so do their
// neighbours of one tap; those outside of the image are replaced by zeros. A thread has the same chunk of every so many rows.
template <int tile_n, int threads>
class Gather {
  static constexpr int apart = threads / row_packets, a_count = tile_m / apart, b_count = tile_n / apart;
  static_assert(apart % 8 == 0 && a_count <= 32, "a thread's chunks lie at the same place of their rows, and have a bit each");

 public:
  __device__ __forceinline__ Gather(const bf16* x, const bf16* w, const Images& images, int first_pixel, int first_column)
      : x_{x}, images_{images} {
    const int row = static_cast<int>(threadIdx.x) / row_packets, chunk = static_cast<int>(threadIdx.x) % row_packets;
    const int first = first_pixel + row;
    own_ = static_cast<std::ptrdiff_t>(first) * images.channels + chunk * packet;
    w_ = w + static_cast<std::size_t>(first_column + row) * (taps * images.channels) + chunk * packet;
    to_ = row * row_bytes + (chunk ^ row % 8) * 16;
#pragma unroll
    for (int i = 0; i < a_count; ++i) {
      const int pixel = first + i * apart, column = pixel % images.width, line = pixel / images.width % images.height;
      const unsigned bit = pixel < images.pixels ? 1u << i : 0;
      exist_ |= bit;
      if (line > 0) above_ |= bit;
      if (line + 1 < images.height) below_ |= bit;
      if (column > 0) left_ |= bit;
      if (column + 1 < images.width) right_ |= bit;
    }
    begin_tap();
  }

  __device__ __forceinline__ void copy_next(unsigned char* stage) {
    const int step = apart * images_.channels;
#pragma unroll
    for (int i = 0; i < a_count; ++i) {
      const bool inside = (inside_ >> i & 1) != 0;
      device::copy_async_16_or_zero(stage + to_ + i * apart * row_bytes,
                                    x_ + (inside ? at_ + static_cast<std::ptrdiff_t>(i) * step : 0), inside);
    }
#pragma unroll
    for (int i = 0; i < b_count; ++i)
      device::copy_async_16(stage + a_bytes + to_ + i * apart * row_bytes, w_ + static_cast<std::ptrdiff_t>(i) * taps * step);
    w_ += step_channels;
    at_ += step_channels;
    channel_ += step_channels;
    if (channel_ < images_.channels) return;
    channel_ = 0;
    ++tap_;
    begin_tap();
  }

 private:
  __device__ __forceinline__ void begin_tap() {
    const int down = tap_ / filter - 1, right = tap_ % filter - 1;
    at_ = own_ + static_cast<std::ptrdiff_t>(down * images_.width + right) * images_.channels;
    inside_ = (down < 0 ? above_ : down > 0 ? below_ : exist_) & (right < 0 ? left_ : right > 0 ? right_ : exist_);
  }

  const bf16 *x_, *w_;
  const Images& images_;
  std::ptrdiff_t own_, at_;  // elements of x before this thread's first chunk: of the pixel itself, of the present tap
  int to_, channel_ = 0, tap_ = 0;
  unsigned inside_, exist_ = 0, above_ = 0, below_ = 0, left_ = 0, right_ = 0;  // a bit for each of the thread's rows
};

// Blocks that follow one another share their pixels.
template <int tile_n>
__device__ __forceinline__ int first_pixel(int channels_out) {
  return static_cast<int>(blockIdx.x) / (channels_out / tile_n) * tile_m;
}
template <int tile_n>
__device__ __forceinline__ int first_column(int channels_out) {
  return static_cast<int>(blockIdx.x) % (channels_out / tile_n) * tile_n;
}

}  // namespace aisp::ch09::conv
