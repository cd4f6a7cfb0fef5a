// SPDX-License-Identifier: Apache-2.0
// The parameter tensors of GPT-2 124M.
#pragma once
#include <cstddef>
#include <vector>

namespace aisp::training {

// Elements of each: embeddings, weights and biases of two norms, of attention and of the MLP in each of twelve layers, and a last
// norm. `width` is 768; less makes all of them smaller.
inline std::vector<std::size_t> gpt2(std::size_t width = 768) {
  std::vector<std::size_t> sizes{50257 * width, 1024 * width};
  for (int layer = 0; layer < 12; ++layer)
    for (const std::size_t size : {width, width, 3 * width * width, 3 * width, width * width, width, width, width,
                                   4 * width * width, 4 * width, 4 * width * width, width})
      sizes.push_back(size);
  sizes.insert(sizes.end(), {width, width});
  return sizes;
}

}  // namespace aisp::training
