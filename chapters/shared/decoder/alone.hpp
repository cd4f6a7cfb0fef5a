// SPDX-License-Identifier: Apache-2.0
// A request by itself, the plainest way: all of its prompt in one step, then a token a step. What it gives is what it must give
// in any company.
#pragma once
#include <array>
#include <vector>

#include "arrange.hpp"
#include "decoder.hpp"
#include "reference.cuh"

namespace aisp::decoder {

// The prompt and `outputs` tokens more. make(batch) makes a Step that writes to `next`; its cache holds `sequence`.
template <class Make>
std::vector<int> generate_alone(cudaStream_t stream, const Shape& shape, const BatchMemory& memory, const int* next,
                                const Make& make, int sequence, std::vector<int> tokens, int outputs) {
  std::size_t done = 0;
  for (int i = 0; i < outputs; ++i) {
    const std::array span{Span{sequence, static_cast<int>(done), static_cast<int>(tokens.size() - done)}};
    const Batch batch = memory.upload(stream, shape, Arranged{shape, span});
    check(cudaMemcpyAsync(batch.tokens, tokens.data() + done, (tokens.size() - done) * sizeof(int), cudaMemcpyHostToDevice,
                          stream));
    run(make(batch), stream);
    done = tokens.size();
    tokens.push_back(0);
    check(cudaMemcpyAsync(&tokens.back(), next, sizeof(int), cudaMemcpyDeviceToHost, stream));
    check(cudaStreamSynchronize(stream));
  }
  return tokens;
}

namespace reference {

// The normed state after the last token of each sequence, [sequence][hidden]: what the token after it is chosen from.
inline std::vector<double> last_states(Cublas& cublas, cudaStream_t stream, const Shape& shape, const Weights& weights,
                                       const std::vector<std::vector<int>>& sequences) {
  constexpr std::size_t rows_at_once = 4096;
  std::vector<double> states;
  for (std::size_t first = 0; first < sequences.size();) {
    std::vector<int> tokens, lengths;
    do {
      tokens.insert(tokens.end(), sequences[first].begin(), sequences[first].end());
      lengths.push_back(static_cast<int>(sequences[first].size()));
      ++first;
    } while (first < sequences.size() && tokens.size() + sequences[first].size() <= rows_at_once);
    const Results results = forward(cublas, stream, shape, weights, tokens, lengths);
    std::ptrdiff_t row = 0;
    for (const int length : lengths) {
      row += length;
      const auto last = results.normed.begin() + (row - 1) * shape.hidden;
      states.insert(states.end(), last, last + shape.hidden);
    }
  }
  return states;
}

}  // namespace reference
}  // namespace aisp::decoder
