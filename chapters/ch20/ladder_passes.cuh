// SPDX-License-Identifier: Apache-2.0
// A decoding step of some sequences over four layers, by one operation in each kernel or by the decoder's fused kernels. The
// products are the pair's: multiply(matrix, layer, x, y), where a matrix is one of those below.
#pragma once
#include "decoder/model.hpp"
#include "prompt_rows.cuh"

namespace aisp::ch20 {

enum class Matrix { q, k, v, qkv, o, gate, up, gate_up, down };

// Rows of a projection into the cache, which has a place for each head, sequence and position. blockIdx: the head, the row.
static __global__ void append_rows_kernel(const bf16* from, unsigned pitch, bf16* to, attention::ContiguousCache cache,
                                          const int* sequences, const int* positions, unsigned head_packets) {
  const unsigned head = blockIdx.x, row = blockIdx.y, i = threadIdx.x;
  if (i >= head_packets) return;
  const std::size_t place = cache.at(sequences[row], static_cast<int>(head), positions[row]) + std::size_t{i} * packet;
  *reinterpret_cast<uint4*>(to + place) =
      *reinterpret_cast<const uint4*>(from + std::size_t{row} * pitch + (head * head_packets + i) * packet);
}
// x[row] = the token's row of the table.
static __global__ __launch_bounds__(row_threads) void embed_rows_kernel(const int* tokens, PacketRows table, PacketRows x,
                                                                        unsigned packets) {
  const unsigned i = blockIdx.x * row_threads + threadIdx.x, row = blockIdx.y;
  if (i < packets) x.at(row, i) = table.at(static_cast<unsigned>(tokens[row]), i);
}

using LadderStep = decoder::Step<attention::ContiguousCache>;

// The norm with this number of x + delta, where there is a delta, or of the tokens' rows.
inline void norm_rows(cudaStream_t stream, const LadderStep& step, std::size_t which, const bf16* delta, bool embeds, bf16* to) {
  const decoder::Workspace& w = step.model.workspace;
  const auto hidden = static_cast<std::size_t>(step.model.shape.hidden);
  launch_kernel(stream, decoder::norm_kernel, {static_cast<unsigned>(step.batch.rows), decoder::norm_threads},
                decoder::Norm{embeds ? step.batch.tokens : nullptr, step.model.weights.embedding, delta, w.x, to,
                              step.model.weights.norms + which * hidden, nullptr, step.model.shape.hidden});
}

template <class Multiply>
void one_operation_per_kernel(cudaStream_t stream, const LadderStep& step, const Multiply& multiply, bf16* states) {
  const decoder::Workspace& w = step.model.workspace;
  const decoder::Shape& s = step.model.shape;
  const auto rows = static_cast<std::size_t>(step.batch.rows), hidden = static_cast<std::size_t>(s.hidden),
             ffn = static_cast<std::size_t>(s.ffn), pitch = static_cast<std::size_t>(s.qkv_columns());
  const auto head_packets = static_cast<unsigned>(s.head_size / packet);
  const auto rotate = [&](const bf16* from, int columns) {
    const PacketRows own = packets_of(from, pitch);
    launch_kernel(stream, rotate_rows_kernel, grid_of_rows(rows, static_cast<std::size_t>(columns)), own, own,
                  step.model.weights.angles, step.batch.positions, columns / packet, head_packets);
  };
  const auto append = [&](const bf16* from, const bf16* to, const attention::ContiguousCache& cache) {
    launch_kernel(stream, append_rows_kernel, {dim3{static_cast<unsigned>(s.kv_heads), static_cast<unsigned>(rows)}, 32}, from,
                  pitch, const_cast<bf16*>(to), cache, step.batch.sequences, step.batch.positions, head_packets);
  };
  const auto add = [&] {
    map_rows<Plus>(stream, rows, hidden, packets_of(w.x, hidden), packets_of(w.delta, hidden), packets_of(w.x, hidden));
  };
  bf16 *const k = w.qkv + s.q_columns(), *const v = k + s.kv_columns();
  launch_kernel(stream, embed_rows_kernel, grid_of_rows(rows, hidden), step.batch.tokens,
                packets_of(step.model.weights.embedding, hidden), packets_of(w.x, hidden), hidden / packet);
  for (int layer = 0; layer < s.layers; ++layer) {
    const attention::ContiguousCache cache = step.of_layer(layer);
    norm_rows(stream, step, 2 * static_cast<std::size_t>(layer), nullptr, false, w.normed);
    multiply(Matrix::q, layer, w.normed, w.qkv);
    multiply(Matrix::k, layer, w.normed, k);
    multiply(Matrix::v, layer, w.normed, v);
    rotate(w.qkv, s.q_columns());
    rotate(k, s.kv_columns());
    append(k, cache.k, cache);
    append(v, cache.v, cache);
    step.attend(stream, layer);
    multiply(Matrix::o, layer, w.attended, w.delta);
    add();
    norm_rows(stream, step, 2 * static_cast<std::size_t>(layer) + 1, nullptr, false, w.normed);
    multiply(Matrix::gate, layer, w.normed, w.gate_up);
    multiply(Matrix::up, layer, w.normed, w.gate_up + ffn);
    const PacketRows gate = packets_of(w.gate_up, 2 * ffn), active = packets_of(w.active, ffn);
    map_rows<Silu>(stream, rows, ffn, gate, PacketRows{}, active);
    map_rows<Times>(stream, rows, ffn, active, packets_of(w.gate_up + ffn, 2 * ffn), active);
    multiply(Matrix::down, layer, w.active, w.delta);
    add();
  }
  norm_rows(stream, step, 2 * static_cast<std::size_t>(s.layers), nullptr, false, states);
}

template <class Multiply>
void fused_kernels(cudaStream_t stream, const LadderStep& step, const Multiply& multiply, bf16* states) {
  const decoder::Workspace& w = step.model.workspace;
  const decoder::Shape& s = step.model.shape;
  const auto rows = static_cast<std::size_t>(step.batch.rows), ffn = static_cast<std::size_t>(s.ffn);
  norm_rows(stream, step, 0, nullptr, true, w.normed);
  for (int layer = 0; layer < s.layers; ++layer) {
    multiply(Matrix::qkv, layer, w.normed, w.qkv);
    step.append(stream, layer);
    step.attend(stream, layer);
    multiply(Matrix::o, layer, w.attended, w.delta);
    norm_rows(stream, step, 2 * static_cast<std::size_t>(layer) + 1, w.delta, false, w.normed);
    multiply(Matrix::gate_up, layer, w.normed, w.gate_up);
    map_rows<SiluTimes>(stream, rows, ffn, packets_of(w.gate_up, 2 * ffn), packets_of(w.gate_up + ffn, 2 * ffn),
                        packets_of(w.active, ffn));
    multiply(Matrix::down, layer, w.active, w.delta);
    norm_rows(stream, step, 2 * static_cast<std::size_t>(layer) + 2, w.delta, false, layer + 1 < s.layers ? w.normed : states);
  }
}

}  // namespace aisp::ch20
