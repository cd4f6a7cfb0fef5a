// SPDX-License-Identifier: Apache-2.0
// dQ, dK and dV against float64, head by head, from the float64 forward's result.
#include <attention/backward.hpp>

#include "bench.hpp"

namespace aisp::attention::test {
namespace {

class AttentionBackward : public GpuTest<9, 9> {};

double d_o_value(int sequence, int head, int row, int column) { return rounded(noise(4, sequence, head, row, column)); }

// By their definition; [head][row][column].
struct Gradients {
  std::vector<std::vector<double>> q, k, v;
};
// value(row, column) for all of them.
std::vector<double> matrix(int rows, int columns, const std::function<double(int, int)>& value) {
  std::vector<double> all;
  for (int row = 0; row < rows; ++row)
    for (int i = 0; i < columns; ++i) all.push_back(value(row, i));
  return all;
}
void add_row(std::vector<double>& to, int row, double factor, const std::vector<double>& from, int from_row, int columns) {
  for (int i = 0; i < columns; ++i) to[row * columns + i] += factor * from[from_row * columns + i];
}
double dot(const std::vector<double>& a, int a_row, const std::vector<double>& b, int b_row, int columns) {
  double sum = 0;
  for (int i = 0; i < columns; ++i) sum += a[a_row * columns + i] * b[b_row * columns + i];
  return sum;
}
Gradients expected_gradients(const Problem& p, int sequence) {
  const int rows = p.queries[sequence], keys = p.keys[sequence], columns = p.head_size;
  Gradients g;
  g.k.assign(p.kv_heads, std::vector<double>(static_cast<std::size_t>(keys) * columns));
  g.v = g.k;
  for (int head = 0; head < p.heads; ++head) {
    const int kv_head = p.kv_head(head);
    const HeadResult forward = expected(p, sequence, head);
    const auto q = matrix(rows, columns, [&](int row, int i) { return q_value(p, sequence, head, row, i); });
    const auto d_o = matrix(rows, columns, [&](int row, int i) { return d_o_value(sequence, head, row, i); });
    const auto k = matrix(keys, columns, [&](int key, int i) { return k_value(p, sequence, kv_head, key, i); });
    const auto v = matrix(keys, columns, [&](int key, int i) { return v_value(p, sequence, kv_head, key, i); });
    std::vector<double> d_q(static_cast<std::size_t>(rows) * columns);
    for (int row = 0; row < rows; ++row) {
      const double delta = dot(d_o, row, forward.o, row, columns);
      for (int key = 0; key < keys; ++key) {
        const double weight = forward.weights[static_cast<std::size_t>(row) * keys + key];
        if (weight == 0) continue;
        const double d_s = weight * (dot(d_o, row, v, key, columns) - delta) * p.scale;
        add_row(d_q, row, d_s, k, key, columns);
        add_row(g.k[kv_head], key, d_s, q, row, columns);
        add_row(g.v[kv_head], key, weight, d_o, row, columns);
      }
    }
    g.q.push_back(std::move(d_q));
  }
  return g;
}

struct Worst {
  double q = 0, k = 0, v = 0;
};

struct Outputs {
  Rows4 q, k, v;
};

Worst worst(const Problem& p, const Outputs& found) {
  Worst result;
  const auto compare = [](double& worst, const Rows4& buffer, int sequence, int head, const std::vector<double>& wanted,
                          int columns) {
    std::vector<double> values(wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i)
      values[i] = static_cast<float>(
          buffer.data[buffer.index({static_cast<int>(i) / columns, sequence}, head, static_cast<int>(i) % columns)]);
    worst = std::max(worst, distance(values, wanted));
  };
  for (int s = 0; s < p.sequences(); ++s) {
    const Gradients wanted = expected_gradients(p, s);
    for (int head = 0; head < p.heads; ++head) compare(result.q, found.q, s, head, wanted.q[head], p.head_size);
    for (int head = 0; head < p.kv_heads; ++head) {
      compare(result.k, found.k, s, head, wanted.k[head], p.head_size);
      compare(result.v, found.v, s, head, wanted.v[head], p.head_size);
    }
  }
  return result;
}

template <int head_size, bool in_order, class Blocks = HeadsInTurn, bool staged = true, class Mask>
Outputs run_backward(const Problem& p, const Mask& mask) {
  const int sequences = p.sequences(), queries = p.queries[0], keys = p.keys[0];
  const auto place = [](int sequence, int row) { return Place{row, sequence}; };
  Buffers b{p, {sequences, queries}, {sequences, keys}, place, place, Rows4::Order::rows_first};
  Rows4 d_o = b.o;
  for (int s = 0; s < sequences; ++s)
    for (int head = 0; head < p.heads; ++head) {
      const HeadResult forward = expected(p, s, head);
      for (int row = 0; row < queries; ++row) {
        b.log_sums[s * b.log_sum_strides().sequence + head * b.log_sum_strides().head + row] =
            static_cast<float>(forward.log_sums[row]);
        for (int i = 0; i < head_size; ++i) {
          b.o.data[b.o.index({row, s}, head, i)] = static_cast<float>(forward.o[row * head_size + i]);
          d_o.data[d_o.index({row, s}, head, i)] = static_cast<float>(d_o_value(s, head, row, i));
        }
      }
    }
  const BackwardScratch sizes = backward_scratch(queries, p.heads, sequences, head_size);
  const OnGpu<bf16> q{b.q.data}, k{b.k.data}, v{b.v.data}, o{b.o.data}, d_o_gpu{d_o.data};
  const OnGpu<bf16> d_q{std::vector<bf16>(b.q.data.size(), Buffers::nan())},
      d_k{std::vector<bf16>(b.k.data.size(), Buffers::nan())}, d_v{std::vector<bf16>(b.v.data.size(), Buffers::nan())};
  const OnGpu<float> log_sums{b.log_sums}, padded{std::vector<float>(sizes.rows, NAN)},
      deltas{std::vector<float>(sizes.rows, NAN)}, sums{std::vector<float>(sizes.d_q_sums, NAN)};
  const OnGpu<unsigned> added{std::vector<unsigned>(sizes.added, 77)}, begun{std::vector<unsigned>{77}};
  Backward<Mask> work{};
  work.mask = mask, work.lengths = {queries, keys}, work.scale = static_cast<float>(p.scale);
  work.log_sums = log_sums.get(), work.log_sum_strides = b.log_sum_strides();
  work.padded_log_sums = padded.get(), work.deltas = deltas.get(), work.d_q_sums = sums.get();
  work.added = added.get(), work.begun = begun.get();
  const BackwardPass<head_size, Mask, in_order, Blocks, staged> pass{
      {b.q.tensor(q.get()), b.k.tensor(k.get()), b.v.tensor(v.get()), b.o.tensor(o.get()), d_o.tensor(d_o_gpu.get()),
       b.q.tensor(d_q.get()), b.k.tensor(d_k.get()), b.v.tensor(d_v.get())},
      work};
  pass.run(Direct{});
  Outputs outputs{b.q, b.k, b.v};
  outputs.q.data = d_q.host(), outputs.k.data = d_k.host(), outputs.v.data = d_v.host();
  return outputs;
}

Problem problem(int heads, int kv_heads, int queries, int keys, int head_size) {
  Problem p;
  p.heads = heads, p.kv_heads = kv_heads, p.head_size = p.value_size = head_size;
  p.queries.assign(1, queries), p.keys.assign(1, keys);
  p.scale = 1 / std::sqrt(head_size);
  return p;
}

// Weights, their derivatives and results are rounded to bf16 once each. A derivative is a difference, and where a key has nearly
// all of the weight little is left of it but the rounding of O: 1.3e-2 in a head whose scores rise.
constexpr double allowed_gradient = 2e-2;

template <int head_size, bool in_order, class Blocks = HeadsInTurn, bool staged = true, class Mask>
void check_gradients(const Problem& p, const Mask& mask) {
  const Worst found = worst(p, run_backward<head_size, in_order, Blocks, staged>(p, mask));
  const std::string what =
      std::to_string(p.queries[0]) + " queries, " + std::to_string(p.keys[0]) + " keys of " + std::to_string(head_size);
  EXPECT_LE(found.q, allowed_gradient) << "dQ, " << what;
  EXPECT_LE(found.k, allowed_gradient) << "dK, " << what;
  EXPECT_LE(found.v, allowed_gradient) << "dV, " << what;
}

TEST_F(AttentionBackward, WithoutMaskTakesAnyLengths) {
  for (const auto& [queries, keys] : {std::pair{128, 128}, {33, 40}, {65, 193}, {200, 70}}) {
    check_gradients<128, false>(problem(4, 4, queries, keys, 128), NoMask{});
    check_gradients<64, false>(problem(4, 4, queries, keys, 64), NoMask{});
  }
}

TEST_F(AttentionBackward, CausalAndGroupsOfHeads) {
  for (const auto& [queries, keys] : {std::pair{256, 256}, {130, 300}, {300, 130}}) {
    Problem p = problem(8, 4, queries, keys, 128);
    p.visible = causal(p);
    check_gradients<128, true>(p, Causal{});
    p = problem(8, 4, queries, keys, 64);
    p.visible = causal(p);
    check_gradients<64, true>(p, Causal{});
  }
}

bool equal(const Outputs& a, const Outputs& b) {
  const auto of = [](const Rows4& x, const Rows4& y) {
    return std::memcmp(x.data.data(), y.data.data(), x.data.size() * sizeof(bf16)) == 0;
  };
  return of(a.q, b.q) && of(a.k, b.k) && of(a.v, b.v);
}

TEST_F(AttentionBackward, InOrderGivesEqualBits) {
  Problem p = problem(2, 1, 200, 400, 128);
  p.queries.push_back(200), p.keys.push_back(400);
  p.visible = causal(p);
  const Outputs first = run_backward<128, true>(p, Causal{});
  EXPECT_TRUE(equal(first, run_backward<128, true>(p, Causal{})));
  EXPECT_TRUE(equal(first, (run_backward<128, true, FirstKeysFirst>(p, Causal{})))) << "in another order of the blocks";
  Outputs other = first;
  other.k.data[other.k.index({17, 1}, 0, 3)] = bf16{0.75f};
  EXPECT_FALSE(equal(first, other));
}

// More sequences and heads than one, so that the first keys of all come before the second keys of any.
TEST_F(AttentionBackward, BlocksMayBeginWithTheFirstKeys) {
  for (const int size : {64, 128}) {
    Problem p = problem(4, 2, 200, 330, size);
    p.queries.push_back(200), p.keys.push_back(330);
    p.visible = causal(p);
    if (size == 64) {
      check_gradients<64, true, FirstKeysFirst>(p, Causal{});
      check_gradients<64, false, FirstKeysFirst>(p, Causal{});
    } else {
      check_gradients<128, true, FirstKeysFirst>(p, Causal{});
      check_gradients<128, false, FirstKeysFirst>(p, Causal{});
    }
  }
}

TEST_F(AttentionBackward, PartsOfDQMayComeFromRegisters) {
  for (const auto& [queries, keys] : {std::pair{33, 40}, {200, 330}}) {
    Problem p = problem(4, 2, queries, keys, 128);
    p.visible = causal(p);
    check_gradients<128, false, FirstKeysFirst, false>(p, Causal{});
    p = problem(4, 2, queries, keys, 64);
    check_gradients<64, false, HeadsInTurn, false>(p, NoMask{});
  }
}

TEST_F(AttentionBackward, FaultsAreSeen) {
  Problem p = problem(4, 2, 130, 200, 64);
  p.visible = causal(p);
  const Outputs found = run_backward<64, true>(p, Causal{});
  const auto seen = [&](const char* fault, const Problem& wrong) {
    const Worst distances = worst(wrong, found);
    EXPECT_GT(distances.q, allowed_gradient) << fault;
    EXPECT_GT(distances.k, allowed_gradient) << fault;
    EXPECT_GT(distances.v, allowed_gradient) << fault;
  };
  Problem wrong = p;
  wrong.visible = causal(p, 1);
  seen("one key more", wrong);
  wrong.visible = [c = causal(p)](int s, int head, int row, int key) { return c(s, head, row, key) && row / 64 != 1; };
  seen("a tile of rows lost", wrong);
  wrong = p;
  wrong.scale *= 1.2;
  seen("another scale", wrong);
}

}  // namespace
}  // namespace aisp::attention::test
