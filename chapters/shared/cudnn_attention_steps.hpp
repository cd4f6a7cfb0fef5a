// SPDX-License-Identifier: Apache-2.0
// Parts of attention as graphs of cuDNN spell it out, in the order in which the library's engines recognize it.
#pragma once
#include <aisp/libraries/cudnn.hpp>

namespace aisp::shared {

// The rows' softmax of fp32 `scores` ([batch][head][query][key], sizes `square`) as weights in bf16.
inline int softmax_steps(cudnn::Graph& graph, int scores, const cudnn::Sizes& square) {
  using cudnn::DataType, cudnn::Pointwise, cudnn::Reduction;
  const cudnn::Sizes column = {square[0], square[1], square[2], 1};
  const auto of_rows = [&] { return graph.between(DataType::f32, column); };
  const int maximum = of_rows(), sum = of_rows(), log_sum = of_rows(), whole = of_rows();
  const int below = graph.between(DataType::f32, square), exponentials = graph.between(DataType::f32, square),
            weights = graph.between(DataType::bf16, square);
  graph.reduce(Reduction::max, scores, maximum);
  graph.pointwise(Pointwise::subtract, scores, below, maximum);
  graph.pointwise(Pointwise::exp, below, exponentials);
  graph.reduce(Reduction::add, exponentials, sum);
  // Nobody asks for the rows' log-sum-exp, but without it the engines do not recognize the graph.
  graph.pointwise(Pointwise::log, sum, log_sum);
  graph.pointwise(Pointwise::add, maximum, whole, log_sum);
  graph.pointwise(Pointwise::divide, exponentials, weights, sum);
  return weights;
}

}  // namespace aisp::shared
