// SPDX-License-Identifier: Apache-2.0
// The numeric parameters of the engine's kernel. This header has no device code, so that host code can name them.
#pragma once

namespace aisp::gemm {

struct Shape {
  int tile_m = 128, tile_n = 128;  // of C: what a block computes at a time; in the ping-pong, what a warpgroup does
  int stages = 4;
  int consumers = 2;      // warpgroups that multiply
  bool pingpong = false;  // each consumer has a tile of its own, and multiplies while the other stores; otherwise they share one
  int cluster = 1;        // blocks that compute tiles one above the other and share their part of B
};

}  // namespace aisp::gemm
