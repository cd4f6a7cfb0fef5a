// SPDX-License-Identifier: Apache-2.0
// The head of a language model in float64: losses of rows, and what their mean makes of the hidden states.
#pragma once
#include <cuda_bf16.h>
#include <aisp/buffers.hpp>

#include <cmath>
#include <vector>

#include "row_cache.hpp"

namespace aisp::ch13 {

class HeadReference {
 public:
  HeadReference(const Input<__nv_bfloat16>& hidden, const Input<__nv_bfloat16>& weights, std::size_t depth,
                std::size_t vocabulary)
      : hidden_{hidden}, weights_{weights}, depth_{depth}, vocabulary_{vocabulary} {}

  // Inputs have changed.
  void forget(std::size_t rows) { rows_.forget(rows); }
  // Returns the loss of a row whose label is a word of the vocabulary.
  double loss(std::size_t row, std::size_t label) const {
    const Row& of = at(row);
    return of.log_sum - of.logits[label];
  }
  // The gradient of its loss, before it is divided by the number of rows.
  double gradient(std::size_t row, std::size_t column, std::size_t label) const {
    const Row& of = at(row);
    double sum = 0;
    for (std::size_t v = 0; v < vocabulary_; ++v)
      sum += (std::exp(of.logits[v] - of.log_sum) - (v == label ? 1 : 0)) * weights_.host(v * depth_ + column);
    return sum;
  }

 private:
  struct Row {
    std::vector<double> logits;  // as bf16 has them
    double log_sum;
  };
  const Row& at(std::size_t row) const {
    return rows_.of(row, [&] {
      Row of{std::vector<double>(vocabulary_), 0};
      double sum = 0;
      for (std::size_t v = 0; v < vocabulary_; ++v) {
        double logit = 0;
        for (std::size_t k = 0; k < depth_; ++k) logit += hidden_.host(row * depth_ + k) * weights_.host(v * depth_ + k);
        of.logits[v] = static_cast<double>(__bfloat162float(__float2bfloat16(static_cast<float>(logit))));
        sum += std::exp(of.logits[v]);
      }
      of.log_sum = std::log(sum);
      return of;
    });
  }

  const Input<__nv_bfloat16>&hidden_, &weights_;
  std::size_t depth_, vocabulary_;
  shared::RowCache<Row> rows_;
};

}  // namespace aisp::ch13
