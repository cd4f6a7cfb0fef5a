// SPDX-License-Identifier: Apache-2.0
// CUDA C++ for one expression: what nobody has to write by hand.
#pragma once
#include <string>

#include "expression.hpp"

namespace aisp::ch14 {

inline constexpr unsigned fusion_threads = 256;

namespace detail {

// A value of element k: of an operand that was read, or of an operation.
inline std::string value_of(const Expression& nodes, int of) {
  const Node& node = nodes[static_cast<std::size_t>(of)];
  return is_leaf(node.op) ? name_of(node) + "_values[k]" : "v" + std::to_string(of);
}

inline std::string operation(const Expression& nodes, const Node& node) {
  const std::string a = value_of(nodes, node.a), b = is_binary(node.op) ? value_of(nodes, node.b) : "";
  switch (node.op) {
    case Op::add: return a + " + " + b;
    case Op::multiply: return a + " * " + b;
    case Op::maximum: return "fmaxf(" + a + ", " + b + ")";
    case Op::relu: return "relu(" + a + ")";
    case Op::sigmoid: return "sigmoid(" + a + ")";
    default: return "gelu(" + a + ")";
  }
}

}  // namespace detail

// All have the parameters (x, gate, residual, scale, bias, out, packets), whatever they use of them, and fusion_threads threads a
// block. A thread reads 16 bytes of each operand before it computes. The row's length is a constant, so that finding the column
// takes no division.
inline std::string fusion_code(const Expression& nodes, std::size_t row_packets) {
  const std::string threads = std::to_string(fusion_threads);
  std::string reads, unpacks, values;
  bool any_column = false;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    if (is_leaf(node.op)) {
      const std::string name = name_of(node);
      any_column |= node.op == Op::column;
      reads += "  const uint4 " + name + "_bits = " + name + (node.op == Op::column ? "[column];\n" : "[i];\n");
      unpacks += "  float " + name + "_values[packet];\n  unpack(" + name + "_bits, " + name + "_values);\n";
    } else values += "    const float v" + std::to_string(i) + " = " + detail::operation(nodes, node) + ";\n";
  }
  std::string text = "#include \"ch14/elementwise.cuh\"\nusing namespace aisp::ch14;\n\n";
  text += "// " + formula(nodes) + "\n";
  text += "__global__ __launch_bounds__(" + threads + ") void fused_kernel(\n";
  text += "    const uint4* __restrict__ x, const uint4* __restrict__ gate, const uint4* __restrict__ residual,\n";
  text += "    const uint4* __restrict__ scale, const uint4* __restrict__ bias, uint4* __restrict__ out, unsigned packets) {\n";
  text += "  const unsigned i = blockIdx.x * " + threads + " + threadIdx.x;\n  if (i >= packets) return;\n";
  if (any_column) text += "  const unsigned column = i % " + std::to_string(row_packets) + ";\n";
  text += reads + unpacks + "  float result[packet];\n#pragma unroll\n  for (int k = 0; k < packet; ++k) {\n" + values;
  return text + "    result[k] = v" + std::to_string(nodes.size() - 1) + ";\n  }\n  out[i] = pack(result);\n}\n";
}

}  // namespace aisp::ch14
