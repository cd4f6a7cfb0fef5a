// SPDX-License-Identifier: Apache-2.0
// The decoders of chapters 15, 16, 17 and 20: their layers have real models' shapes, but there are few of them.
#pragma once
#include <cstddef>

namespace aisp::decoder {

struct Shape {
  int hidden, heads, kv_heads, head_size, ffn, layers;
  int words = 0;  // of a head; 0: none, the next token is the index of the largest of the final normed channels

  constexpr int group() const { return heads / kv_heads; }
  constexpr int q_columns() const { return heads * head_size; }
  constexpr int kv_columns() const { return kv_heads * head_size; }
  constexpr int qkv_columns() const { return q_columns() + 2 * kv_columns(); }
  constexpr int vocabulary() const { return words > 0 ? words : hidden; }
  // Elements of a layer's four matrices, and of all that a step reads.
  constexpr double layer_weights() const { return static_cast<double>(hidden) * (qkv_columns() + q_columns() + 3.0 * ffn); }
  constexpr double weights() const { return layers * layer_weights() + static_cast<double>(words) * hidden; }
  // Returns the bytes of keys and values, per token and layer.
  constexpr double kv_bytes() const { return 2.0 * kv_columns() * 2; }
};

constexpr Shape layers_of_8b(int layers, int words = 0) { return {4096, 32, 8, 128, 14336, layers, words}; }
constexpr Shape layers_of_1_7b(int layers, int words = 0) { return {2048, 16, 8, 128, 6144, layers, words}; }
constexpr Shape layers_of_0_6b(int layers, int words = 0) { return {1024, 16, 8, 128, 3072, layers, words}; }
constexpr Shape layers_of_1b(int layers, int words = 0) { return {2048, 32, 8, 64, 8192, layers, words}; }
constexpr Shape layers_of_3b(int layers, int words = 0) { return {3072, 24, 8, 128, 8192, layers, words}; }
// For tests: heads of both sizes.
constexpr Shape narrow(int layers, int head_size = 128, int words = 0) {
  return {512, 512 / head_size, 2, head_size, 768, layers, words};
}

}  // namespace aisp::decoder
