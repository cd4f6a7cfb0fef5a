// SPDX-License-Identifier: Apache-2.0
// Elementwise expressions that are known at run time: what they are worth, as a program for one kernel that interprets it, and as
// CUDA C++ that is this one expression.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace aisp::ch14 {

enum class Op : std::uint8_t { tensor, column, add, multiply, maximum, relu, sigmoid, gelu };

constexpr bool is_leaf(Op op) { return op == Op::tensor || op == Op::column; }
constexpr bool is_binary(Op op) { return op == Op::add || op == Op::multiply || op == Op::maximum; }

// Operands are earlier nodes; of a leaf, `a` says which tensor, or which vector with a value for each column.
struct Node {
  Op op = Op::tensor;
  int a = 0, b = 0;
};

inline constexpr std::array tensor_names{"x", "gate", "residual"};
inline constexpr std::array column_names{"scale", "bias"};

// Nodes in the order of their computation; the last one is the result. Only the second operand of an operation may be a column.
using Expression = std::vector<Node>;

inline int operations_in(const Expression& nodes) {
  return static_cast<int>(std::ranges::count_if(nodes, [](const Node& node) { return !is_leaf(node.op); }));
}
inline bool uses(const Expression& nodes, Op leaf, int which) {
  return std::ranges::any_of(nodes, [&](const Node& node) { return node.op == leaf && node.a == which; });
}
inline int tensors_in(const Expression& nodes) {
  int count = 0;
  for (int which = 0; which < static_cast<int>(tensor_names.size()); ++which) count += uses(nodes, Op::tensor, which) ? 1 : 0;
  return count;
}

namespace detail {

class Builder {
 public:
  int leaf(Op op, int which) {
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (nodes_[i].op == op && nodes_[i].a == which) return static_cast<int>(i);
    return add({op, which, 0});
  }
  int add(Node node) {
    nodes_.push_back(node);
    return static_cast<int>(nodes_.size()) - 1;
  }
  Expression take() { return std::move(nodes_); }

 private:
  Expression nodes_;
};

}  // namespace detail

// The first `operations` of ((gelu(x * scale + bias) * gate + residual) * scale + ...: five of them are the block that a model
// has.
inline Expression chain(int operations) {
  detail::Builder nodes;
  int value = nodes.leaf(Op::tensor, 0);
  for (int i = 0; i < operations; ++i) switch (i % 5) {
      case 0: value = nodes.add({Op::multiply, value, nodes.leaf(Op::column, 0)}); break;
      case 1: value = nodes.add({Op::add, value, nodes.leaf(Op::column, 1)}); break;
      case 2: value = nodes.add({Op::gelu, value, 0}); break;
      case 3: value = nodes.add({Op::multiply, value, nodes.leaf(Op::tensor, 1)}); break;
      default: value = nodes.add({Op::add, value, nodes.leaf(Op::tensor, 2)}); break;
    }
  return nodes.take();
}

// A graph of three to ten operations whose values are used more than once. Only leaves are factors, so that values stay small,
// and nothing is subtracted, so that the rounding of intermediates is not all that remains.
inline Expression random_expression(std::uint32_t seed) {
  std::mt19937 random{seed};
  const auto below = [&](std::size_t count) { return static_cast<int>(random() % count); };
  detail::Builder nodes;
  std::vector<int> values{nodes.leaf(Op::tensor, 0)};
  const auto some_leaf = [&] {
    return below(2) == 0 ? nodes.leaf(Op::tensor, below(tensor_names.size()))
                         : nodes.leaf(Op::column, below(column_names.size()));
  };
  for (int left = 3 + below(8); left > 0; --left) {
    const int newest = values.back(), any = values[static_cast<std::size_t>(below(values.size()))];
    switch (below(6)) {
      case 0: values.push_back(nodes.add({Op::add, newest, any})); break;
      case 1: values.push_back(nodes.add({Op::maximum, newest, some_leaf()})); break;
      case 2: values.push_back(nodes.add({Op::multiply, newest, some_leaf()})); break;
      case 3: values.push_back(nodes.add({Op::add, newest, some_leaf()})); break;
      case 4: values.push_back(nodes.add({Op::sigmoid, newest, 0})); break;
      default: values.push_back(nodes.add({Op::gelu, newest, 0})); break;
    }
  }
  // A leaf that was added after the last operation would be the result.
  values.push_back(nodes.add({Op::relu, values.back(), 0}));
  return nodes.take();
}

// In float64, by the textbook's formulas; `leaf(op, which)` gives the inputs.
template <class Leaf>
double evaluate(const Expression& nodes, const Leaf& leaf) {
  std::vector<double> values(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    if (is_leaf(node.op)) {
      values[i] = leaf(node.op, node.a);
      continue;
    }
    const double a = values[static_cast<std::size_t>(node.a)], b = values[static_cast<std::size_t>(node.b)];
    switch (node.op) {
      case Op::add: values[i] = a + b; break;
      case Op::multiply: values[i] = a * b; break;
      case Op::maximum: values[i] = std::max(a, b); break;
      case Op::relu: values[i] = std::max(a, 0.0); break;
      case Op::sigmoid: values[i] = 1 / (1 + std::exp(-a)); break;
      default: values[i] = 0.5 * a * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (a + 0.044715 * a * a * a)));
    }
  }
  return values.back();
}

// The slots of values that are still needed: one for each operation's result, taken again when nothing reads it any more.
struct Slots {
  std::vector<int> of;  // by node; -1 for leaves and for the result
  int count = 0;
};
inline Slots slots_of(const Expression& nodes) {
  std::vector<int> last_use(nodes.size(), 0);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (is_leaf(nodes[i].op)) continue;
    last_use[static_cast<std::size_t>(nodes[i].a)] = static_cast<int>(i);
    if (is_binary(nodes[i].op)) last_use[static_cast<std::size_t>(nodes[i].b)] = static_cast<int>(i);
  }
  Slots slots{std::vector<int>(nodes.size(), -1), 0};
  std::vector<int> free_from;  // by slot: the operation after which it is free
  for (std::size_t i = 0; i + 1 < nodes.size(); ++i) {
    if (is_leaf(nodes[i].op)) continue;
    const int now = static_cast<int>(i);
    const auto free = std::ranges::find_if(free_from, [&](int until) { return until < now; });
    const auto slot = static_cast<std::size_t>(free - free_from.begin());
    if (free == free_from.end()) free_from.push_back(0);
    free_from[slot] = std::max(last_use[i], now);
    slots.of[i] = static_cast<int>(slot);
  }
  slots.count = static_cast<int>(free_from.size());
  return slots;
}

inline std::string name_of(const Node& node) {
  const auto which = static_cast<std::size_t>(node.a);
  return node.op == Op::tensor ? tensor_names.at(which) : column_names.at(which);
}

// "gelu(x * scale + bias) * gate + residual"; long ones end in dots.
inline std::string formula(const Expression& nodes, std::size_t longest = 100) {
  std::vector<std::string> texts;
  for (const Node& node : nodes) {
    const auto operand = [&](int of, bool as_factor) {
      const std::string& text = texts[static_cast<std::size_t>(of)];
      return as_factor && nodes[static_cast<std::size_t>(of)].op == Op::add ? "(" + text + ")" : text;
    };
    switch (node.op) {
      case Op::tensor:
      case Op::column: texts.push_back(name_of(node)); break;
      case Op::add: texts.push_back(operand(node.a, false) + " + " + operand(node.b, false)); break;
      case Op::multiply: texts.push_back(operand(node.a, true) + " * " + operand(node.b, true)); break;
      case Op::maximum: texts.push_back("max(" + operand(node.a, false) + ", " + operand(node.b, false) + ")"); break;
      case Op::relu: texts.push_back("relu(" + operand(node.a, false) + ")"); break;
      case Op::sigmoid: texts.push_back("sigmoid(" + operand(node.a, false) + ")"); break;
      case Op::gelu: texts.push_back("gelu(" + operand(node.a, false) + ")"); break;
    }
    if (texts.back().size() > 4 * longest) texts.back() = "(...)";
  }
  return texts.back().size() <= longest ? texts.back() : texts.back().substr(0, longest) + " ...";
}

}  // namespace aisp::ch14
