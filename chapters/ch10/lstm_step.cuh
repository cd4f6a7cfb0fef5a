// SPDX-License-Identifier: Apache-2.0
// The work of a resident block in one step of an LSTM layer: its weights stay in registers, the state comes in 16-byte chunks.
#pragma once
#include <aisp/device/fence.cuh>
#include <aisp/device/matrix.cuh>

#include <cuda_bf16.h>

namespace aisp::ch10::lstm {

using bf16 = __nv_bfloat16;
constexpr int hidden = 1024, batch = 32, gates = 4, rows = gates * hidden, state = batch * hidden;
constexpr int units = 8, blocks = hidden / units;  // hidden units of a block; their gates are 32 rows of the product
constexpr int warps = 8, threads = warps * 32;     // each thread owns one unit of one sequence; each warp one slice of K
static_assert(threads == units * batch);
constexpr int slice = hidden / warps, blocks_per_slice = slice / units;
constexpr int slice_chunks = batch * slice / 8;  // of 8 bf16
constexpr unsigned slice_bytes = slice_chunks * 16;
constexpr int state_chunks = warps * slice_chunks;

// The arguments of all kernels. Gates in the order input, forget, candidate, output.
struct Layer {
  const bf16 *inputs, *weights, *hidden_state;  // [steps][batch][gates][hidden], [hidden][gates][hidden], [batch][hidden]
  const float* cells;                           // [batch][hidden]
  bf16* out;                                    // [steps][batch][hidden]
  int steps;
};

__device__ inline float sigmoid(float x) { return __fdividef(1, 1 + __expf(-x)); }
__device__ inline float tangent(float x) { return fmaf(2, sigmoid(2 * x), -1); }

// Gates in the order input, forget, candidate, output. Returns the new hidden state.
__device__ inline float update_cell(float4 gate, float& cell) {
  cell = fmaf(sigmoid(gate.y), cell, sigmoid(gate.x) * tangent(gate.z));
  return sigmoid(gate.w) * tangent(cell);
}

__device__ inline unsigned pair_of(bf16 low, bf16 high) {
  return __bfloat16_as_ushort(low) | static_cast<unsigned>(__bfloat16_as_ushort(high)) << 16;
}

// A block's work in every step, whichever way the state travels. mma.sync computes 16 rows x 8 sequences: rows 0 to 7 are one
// gate of the block's units, rows 8 to 15 the next gate, so that the four gates of a unit meet in one thread. The sum over k may
// be taken in any order: a lane takes the eight k of a 16-byte chunk of the state, two mma's worth, with the weights to match.
struct Step {
  unsigned weights[2][slice / 16][4];  // gates 0 and 1, gates 2 and 3
  bf16 inputs[gates];
  float cell;
  int lane, warp, unit, sequence, first_unit;

  __device__ Step(const bf16* all_weights, const float* cells)
      : lane{static_cast<int>(threadIdx.x) % 32},
        warp{static_cast<int>(threadIdx.x) / 32},
        unit{static_cast<int>(threadIdx.x) % units},
        sequence{static_cast<int>(threadIdx.x) / units},
        first_unit{static_cast<int>(blockIdx.x) * units} {
#pragma unroll
    for (int i = 0; i < 2 * (slice / 16) * 4; ++i) {
      const int half = i / 32, step = i / 4 % 8, part = i % 4;
      const int k = warp * slice + step / 2 * 32 + lane % 4 * 8 + step % 2 * 4 + part / 2 * 2;
      const bf16* from =
          all_weights + static_cast<std::size_t>(k) * rows + (half * 2 + part % 2) * hidden + first_unit + lane / 4;
      weights[half][step][part] = pair_of(from[0], from[rows]);
    }
    cell = cells[sequence * hidden + first_unit + unit];
  }

  __device__ void fetch_inputs(const bf16* of_step) {
#pragma unroll
    for (int g = 0; g < gates; ++g) inputs[g] = of_step[sequence * rows + g * hidden + first_unit + unit];
  }

  // The product of this warp's slice of K, into `partial`.
  __device__ void multiply(const uint4 (&chunks)[16], float4* partial) const {
    float sums[2][4][4] = {};
#pragma unroll
    for (int i = 0; i < 16; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        device::mma_bf16(sums[half][i / 4], weights[half][i % 4 * 2], chunks[i].x, chunks[i].y);
        device::mma_bf16(sums[half][i / 4], weights[half][i % 4 * 2 + 1], chunks[i].z, chunks[i].w);
      }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int tile = i / 2, c = i % 2;
      partial[warp * threads + place(tile * 8 + lane % 4 * 2 + c, lane / 4)] =
          make_float4(sums[0][tile][c], sums[0][tile][c + 2], sums[1][tile][c], sums[1][tile][c + 2]);
    }
  }

  // Eight neighbouring lanes write to four sequences, or read one: no two of them may meet in a bank.
  __device__ static int place(int sequence, int unit) { return sequence * units + (unit ^ sequence / 2 % 4 * 2); }

  // The new hidden state of this thread's unit, from the partial sums of all warps.
  __device__ float finish(const float4* partial) {
    float4 gate = make_float4(__bfloat162float(inputs[0]), __bfloat162float(inputs[1]), __bfloat162float(inputs[2]),
                              __bfloat162float(inputs[3]));
#pragma unroll
    for (int w = 0; w < warps; ++w) {
      const float4 part = partial[w * threads + place(sequence, unit)];
      gate = make_float4(gate.x + part.x, gate.y + part.y, gate.z + part.z, gate.w + part.w);
    }
    return update_cell(gate, cell);
  }

  // The block's eight units of one sequence are a chunk, which the first of eight lanes gets.
  __device__ static uint4 gather_chunk(bf16 value) {
    const unsigned own = __bfloat16_as_ushort(value);
    const unsigned two = own | __shfl_down_sync(~0u, own, 1) << 16;
    return make_uint4(two, __shfl_down_sync(~0u, two, 2), __shfl_down_sync(~0u, two, 4), __shfl_down_sync(~0u, two, 6));
  }
  // Returns the chunk's place in the exchanged state: in the order in which the lanes of a warp want it.
  __device__ int chunk_place() const {
    const int block_of_slice = static_cast<int>(blockIdx.x) % blocks_per_slice;
    return static_cast<int>(blockIdx.x) / blocks_per_slice * slice_chunks + (sequence / 8 * 4 + block_of_slice / 4) * 32 +
           sequence % 8 * 4 + block_of_slice % 4;
  }
  __device__ int slice_place() const { return warp * slice_chunks + lane; }      // of this lane's first chunk there
  __device__ int state_place() const { return sequence * hidden + first_unit; }  // of the chunk in a step's output
};

}  // namespace aisp::ch10::lstm
