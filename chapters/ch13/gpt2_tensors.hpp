// SPDX-License-Identifier: Apache-2.0
// The parameter tensors of GPT-2 124M, and where they lie in buffers of all of them.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

namespace aisp::ch13 {

// Elements of the tensors of GPT-2 124M: embeddings, and of each of twelve layers weights and biases of two norms, of attention
// and of the MLP.
inline std::vector<std::size_t> gpt2() {
  constexpr std::size_t width = 768;
  std::vector<std::size_t> sizes{50257 * width, 1024 * width};
  for (int layer = 0; layer < 12; ++layer)
    for (const std::size_t size : {width, width, 3 * width * width, 3 * width, width * width, width, width, width,
                                   4 * width * width, 4 * width, 4 * width * width, width})
      sizes.push_back(size);
  sizes.insert(sizes.end(), {width, width});
  return sizes;
}

struct Tensor {
  std::size_t first, count;         // elements within the buffers
  std::size_t first_chunk, chunks;  // pieces of at most chunk_elements

  // With what is left empty to the next multiple of 16 bytes of bf16.
  std::size_t end() const { return first + (count + 7) / 8 * 8; }
};

// `equal`: as many tensors of equal size instead, of as many elements together. Tensors begin
// at multiples of 16 bytes of bf16.
inline std::vector<Tensor> lay_out(std::size_t equal, std::size_t elements, std::size_t chunk_elements) {
  std::vector<std::size_t> sizes = gpt2();
  std::size_t all = 0;
  for (const std::size_t size : sizes) all += size;
  if (equal != 0) sizes.assign(equal, all / equal);
  std::vector<Tensor> tensors;
  std::size_t first = 0, first_chunk = 0;
  for (const std::size_t size : sizes) {
    // In proportion to `elements`, at least one.
    const auto count = std::max<std::size_t>(
        1, static_cast<std::size_t>(static_cast<double>(size) * static_cast<double>(elements) / static_cast<double>(all)));
    const std::size_t chunks = (count + chunk_elements - 1) / chunk_elements;
    tensors.push_back({first, count, first_chunk, chunks});
    first = tensors.back().end();
    first_chunk += chunks;
  }
  return tensors;
}

}  // namespace aisp::ch13
