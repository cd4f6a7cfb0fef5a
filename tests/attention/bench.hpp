// SPDX-License-Identifier: Apache-2.0
// Runs the forward kernel on a problem: puts its rows where the layout says, NaN everywhere else, and compares head by head.
#pragma once
#include <aisp/launch.hpp>

#include <attention/forward.hpp>
#include <attention/forward_by_three.hpp>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "device/gpu_test.hpp"
#include "reference.hpp"

namespace aisp::attention::test {

// Which place of a buffer a row of a sequence has.
using Placing = std::function<Place(int sequence, int row)>;

// A buffer of rows of `columns` elements at places (row, sequence) for each head.
class Rows4 {
 public:
  enum class Order { heads_first, rows_first };
  Rows4(int sequences, int rows, int heads, int columns, Order order, bf16 fill)
      : sequences_{sequences},
        rows_{rows},
        heads_{heads},
        columns_{columns},
        order_{order},
        data(static_cast<std::size_t>(sequences) * rows * heads * columns, fill) {}

  Tensor tensor(const bf16* on_gpu) const {
    const auto size = [](int i) { return static_cast<std::size_t>(i); };
    if (order_ == Order::heads_first) return heads_first(on_gpu, size(sequences_), size(heads_), size(rows_), size(columns_));
    return rows_first(on_gpu, size(sequences_), size(rows_), size(heads_), size(columns_));
  }
  std::size_t index(const Place& place, int head, int column) const {
    const std::size_t row = order_ == Order::heads_first
                                ? (static_cast<std::size_t>(place.sequence) * heads_ + head) * rows_ + place.row
                                : (static_cast<std::size_t>(place.sequence) * rows_ + place.row) * heads_ + head;
    return row * columns_ + column;
  }
  int rows() const { return rows_; }
  int sequences() const { return sequences_; }

 private:
  int sequences_, rows_, heads_, columns_;
  Order order_;

 public:
  std::vector<bf16> data;
};

constexpr float untouched = -12352;

// Buffers of a problem; how many rows and sequences Q and O, and K and V have.
struct Buffers {
  Problem problem;
  Placing query, key;
  Rows4 q, k, v, o;
  std::vector<float> log_sums;

  Buffers(const Problem& p, std::pair<int, int> queries, std::pair<int, int> keys, Placing query_at, Placing key_at,
          Rows4::Order order)
      : problem{p},
        query{std::move(query_at)},
        key{std::move(key_at)},
        q{queries.first, queries.second, p.heads, p.head_size, order, nan()},
        k{keys.first, keys.second, p.kv_heads, p.head_size, order, nan()},
        v{keys.first, keys.second, p.kv_heads, p.value_size, order, nan()},
        o{queries.first, queries.second, p.heads, p.value_size, order, bf16{untouched}},
        log_sums(static_cast<std::size_t>(queries.first) * queries.second * p.heads, untouched) {
    for (int s = 0; s < p.sequences(); ++s) {
      for (int row = 0; row < p.queries[s]; ++row)
        for (int head = 0; head < p.heads; ++head)
          for (int i = 0; i < p.head_size; ++i)
            q.data[q.index(query(s, row), head, i)] = static_cast<float>(q_value(p, s, head, row, i));
      for (int row = 0; row < p.keys[s]; ++row)
        for (int head = 0; head < p.kv_heads; ++head) {
          for (int i = 0; i < p.head_size; ++i)
            k.data[k.index(key(s, row), head, i)] = static_cast<float>(k_value(p, s, head, row, i));
          for (int i = 0; i < p.value_size; ++i)
            v.data[v.index(key(s, row), head, i)] = static_cast<float>(v_value(p, s, head, row, i));
        }
    }
  }
  static bf16 nan() { return bf16{std::numeric_limits<float>::quiet_NaN()}; }
  // [sequence][head][row]
  Strides log_sum_strides() const {
    const auto rows = static_cast<std::size_t>(q.rows());
    return {1, rows, rows * problem.heads};
  }

  // The worst head's distance from the float64 result; infinite where a row is not exactly what it must be: 0 and -inf without
  // keys, untouched outside of the sequences.
  double worst(const Problem& wanted, bool with_log_sums) const {
    double worst = 0;
    std::vector<char> seen(o.data.size());
    for (int s = 0; s < wanted.sequences(); ++s)
      for (int head = 0; head < wanted.heads; ++head) {
        const HeadResult result = expected(wanted, s, head);
        std::vector<double> found(result.o.size());
        for (int row = 0; row < wanted.queries[s]; ++row) {
          const Place place = query(s, row);
          for (int i = 0; i < wanted.value_size; ++i) {
            const std::size_t at = o.index(place, head, i);
            found[static_cast<std::size_t>(row) * wanted.value_size + i] = static_cast<float>(o.data[at]);
            seen[at] = 1;
          }
          if (!with_log_sums) continue;
          const Strides strides = log_sum_strides();
          const double log_sum = log_sums[place.sequence * strides.sequence + head * strides.head + place.row];
          const double of_reference = result.log_sums[row];
          if (std::isinf(of_reference) ? log_sum != of_reference
                                       : !(std::abs(log_sum - of_reference) <= 2e-4 * (1 + std::abs(of_reference))))
            worst = std::numeric_limits<double>::infinity();
        }
        worst = std::max(worst, distance(found, result.o));
      }
    for (std::size_t i = 0; i < seen.size(); ++i)
      if (!seen[i] && static_cast<float>(o.data[i]) != untouched) worst = std::numeric_limits<double>::infinity();
    return worst;
  }
};

// As a pair's Launch.
struct Direct {
  template <class... Parameters, class... Arguments>
  void operator()(void (*kernel)(Parameters...), const Grid& grid, const Arguments&... arguments) const {
    launch_kernel(nullptr, kernel, grid, arguments...);
    check(cudaDeviceSynchronize());
  }
};

// `pass_of(tensors, work)` makes the pass.
template <class Mask, class Keys, class Score, class Order, class PassOf>
void run_pass(Buffers& b, const Forward<Mask, Keys, Score, Order>& given, const PassOf& pass_of) {
  const OnGpu<bf16> q{b.q.data}, k{b.k.data}, v{b.v.data}, o{b.o.data};
  const OnGpu<float> log_sums{b.log_sums};
  Forward<Mask, Keys, Score, Order> work = given;
  work.log_sums = log_sums.get();
  work.log_sum_strides = b.log_sum_strides();
  pass_of(Tensors{b.q.tensor(q.get()), b.k.tensor(k.get()), b.v.tensor(v.get()), b.o.tensor(o.get())}, work).run(Direct{});
  b.o.data = o.host();
  b.log_sums = log_sums.host();
}

template <int head_size, int value_size, bool log_sum, class Mask, class Keys, class Score, class Order>
void run_forward(Buffers& b, const Mask& mask, const Keys& keys, const Score& score, const Order& order) {
  using Pass = ForwardPass<head_size, value_size, Mask, Keys, Score, log_sum, Order>;
  run_pass(b, typename Pass::Work{mask, keys, score, order, 1, nullptr, {}, nullptr, {}},
           [](const Tensors& tensors, const typename Pass::Work& work) {
             return Pass{tensors, work};
           });
}

template <class Mask, class Keys, class Score, class Order>
void run_by_three(Buffers& b, const Mask& mask, const Keys& keys, const Score& score, const Order& order) {
  using Pass = ForwardByThree<Mask, Keys, Score, true, Order>;
  run_pass(b, typename Pass::Work{mask, keys, score, order, 1, nullptr, {}, nullptr, {}},
           [&](const Tensors& tensors, const typename Pass::Work& work) {
             return Pass{tensors, work, tensors.q.rows};
           });
}

inline Scaled scaled(const Problem& p) { return {static_cast<float>(p.scale) * log2_e}; }

// Whether row `row` sees `key` with a causal mask: both sequences end together.
inline std::function<bool(int, int, int, int)> causal(const Problem& p, int later = 0) {
  return [queries = p.queries, keys = p.keys, later](int s, int, int row, int key) {
    return key - keys[s] <= row - queries[s] + later;
  };
}

inline std::vector<int> cumulative(const std::vector<int>& lengths, int first = 0) {
  std::vector<int> begins{first};
  for (const int length : lengths) begins.push_back(begins.back() + length);
  return begins;
}

}  // namespace aisp::attention::test
