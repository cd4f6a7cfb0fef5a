// SPDX-License-Identifier: Apache-2.0
// The forward kernel on sequences of unequal lengths: padded, packed, in pages, and on parts of packed tensors. What no row may
// use is NaN.
#include <attention/varlen.cuh>

#include "attention_example.cuh"
#include "bench.hpp"

namespace aisp::attention::test {
namespace {

class AttentionLayouts : public GpuTest<9, 9> {};

Problem ragged(const std::vector<int>& queries, const std::vector<int>& keys, int heads, int kv_heads, int head_size = 128,
               int value_size = 128) {
  Problem p;
  p.heads = heads, p.kv_heads = kv_heads, p.head_size = head_size, p.value_size = value_size;
  p.queries = queries, p.keys = keys;
  p.scale = 1 / std::sqrt(head_size);
  return p;
}
Placing one_behind_the_other(const std::vector<int>& begins) {
  return [begins](int sequence, int row) { return Place{begins[sequence] + row, 0}; };
}
int longest(const std::vector<int>& lengths) { return *std::max_element(lengths.begin(), lengths.end()); }

// Rows in front of the first sequence and behind the last are nobody's. The kernel is told that keys begin where `told` has moved
// their beginnings to: a planted fault.
double worst_from_a_list(const std::function<void(std::vector<int>&)>& told = [](std::vector<int>&) {}) {
  const std::vector<int> queries{1, 127, 0, 128, 129, 300, 2}, keys{1, 200, 50, 128, 140, 300, 0};
  Problem p = ragged(queries, keys, 4, 2, 64, 64);
  p.visible = [&, causal = causal(p)](int s, int head, int row, int key) {
    return causal(s, head, row, key) && key >= row + p.offset(s) - 150;
  };
  const std::vector<int> query_begins = cumulative(queries, 3), key_begins = cumulative(keys, 5);
  Buffers b{p,
            {1, query_begins.back() + 40},
            {1, key_begins.back() + 9},
            one_behind_the_other(query_begins),
            one_behind_the_other(key_begins),
            Rows4::Order::rows_first};
  std::vector<int> told_begins = key_begins;
  told(told_begins);
  const OnGpu<int> q_begins{query_begins}, k_begins{told_begins}, count{std::vector<int>{-1}};
  const OnGpu<int2> list{std::vector<int2>(20)};
  const OnGpu<unsigned> taken{std::vector<unsigned>{0}};
  const Window mask{150, 0};
  const Varlen layout{q_begins.get(), k_begins.get()};
  Direct{}(list_row_blocks<Window, Varlen>, Grid{1, list_threads, list_shared_bytes}, mask, layout, p.sequences(), list.get(),
           count.get());
  EXPECT_EQ(count.host()[0], 9);
  run_forward<64, 64, true>(b, mask, layout, scaled(p), Listed{list.get(), count.get(), p.heads, taken.get()});
  EXPECT_EQ(taken.host()[0], 0u);
  return b.worst(p, true);
}
TEST_F(AttentionLayouts, PackedSequencesAreTakenFromAList) {
  EXPECT_LE(worst_from_a_list(), allowed);
  EXPECT_GT(worst_from_a_list([](std::vector<int>& begins) { ++begins[2]; }), allowed) << "the next sequence's first key";
  EXPECT_GT(worst_from_a_list([](std::vector<int>& begins) { --begins[4]; }), allowed) << "the last key of the one in front";
}

// As README.md does it.
TEST_F(AttentionLayouts, PackedSequencesNeedNoList) {
  const std::vector<int> lengths{5, 200, 64};
  Problem p = ragged(lengths, lengths, 32, 8);
  p.visible = causal(p);
  const std::vector<int> begins = cumulative(lengths);
  Buffers b{p,
            {1, begins.back()},
            {1, begins.back()},
            one_behind_the_other(begins),
            one_behind_the_other(begins),
            Rows4::Order::rows_first};
  const OnGpu<bf16> q{b.q.data}, k{b.k.data}, v{b.v.data}, o{b.o.data};
  const OnGpu<float> log_sums{b.log_sums};
  const OnGpu<int> begins_on_gpu{begins};
  PackedAttention{
      q.get(), k.get(), v.get(), o.get(), log_sums.get(), begins_on_gpu.get(), static_cast<std::size_t>(begins.back()), 200, 3}
      .run(Direct{});
  b.o.data = o.host();
  b.log_sums = log_sums.host();
  EXPECT_LE(b.worst(p, true), allowed);
}

// The kernel is told that the fourth sequence has `told` keys.
double worst_of_padded(int told) {
  std::vector<int> keys{0, 1, 128, 200, 384};
  Problem p = ragged(std::vector<int>(keys.size(), 130), keys, 4, 2, 64, 64);
  const auto as_it_stands = [](int sequence, int row) { return Place{row, sequence}; };
  Buffers b{p, {p.sequences(), 130}, {p.sequences(), 384}, as_it_stands, as_it_stands, Rows4::Order::heads_first};
  keys[3] = told;
  const OnGpu<int> lengths{keys};
  run_forward<64, 64, true>(b, NoMask{}, Padded{130, lengths.get()}, scaled(p), in_order(130, p.heads, p.sequences()));
  return b.worst(p, true);
}
TEST_F(AttentionLayouts, PaddingIsNotRead) {
  EXPECT_LE(worst_of_padded(200), allowed);
  EXPECT_GT(worst_of_padded(199), allowed) << "the last key lost";
  EXPECT_GT(worst_of_padded(201), allowed) << "a row of padding";
}

// Pages in no order; behind a sequence's last page the table has an entry that is out of range. `exchanged`: the table that the
// kernel reads has the first pages of two sequences for one another.
template <int page_size, int head_size, int value_size>
double worst_of_pages(bool exchanged = false) {
  const std::vector<int> queries{1, 130, 64, 3}, keys{1, 15 + 256, 128, 300};
  Problem p = ragged(queries, keys, 4, 2, head_size, value_size);
  p.visible = causal(p);
  const int entries = (longest(keys) + page_size - 1) / page_size + 1;
  std::vector<int> table(p.sequences() * entries, 1 << 28);
  int pages = 0;
  for (const int length : keys) pages += (length + page_size - 1) / page_size;
  for (int s = 0, next = 0; s < p.sequences(); ++s)
    for (int page = 0; page * page_size < keys[s]; ++page, ++next) table[s * entries + page] = next * 7 % pages;
  EXPECT_NE(pages % 7, 0);
  const std::vector<int> query_begins = cumulative(queries);
  Buffers b{p,
            {1, query_begins.back()},
            {pages, page_size},
            one_behind_the_other(query_begins),
            [&](int s, int row) {
              return Place{row % page_size, table[s * entries + row / page_size]};
            },
            Rows4::Order::rows_first};
  std::vector<int> told = table;
  if (exchanged) std::swap(told[1 * entries], told[3 * entries]);
  const OnGpu<int> q_begins{query_begins}, lengths{keys}, on_gpu{told};
  run_forward<head_size, value_size, true>(b, Causal{}, Paged<page_size>{q_begins.get(), lengths.get(), on_gpu.get(), entries},
                                           scaled(p), in_order(longest(queries), p.heads, p.sequences()));
  return b.worst(p, true);
}

TEST_F(AttentionLayouts, PagesAreFollowed) {
  EXPECT_LE((worst_of_pages<16, 192, 128>()), allowed);
  EXPECT_LE((worst_of_pages<256, 64, 64>()), allowed);
  EXPECT_GT((worst_of_pages<16, 192, 128>(true)), allowed) << "another sequence's page";
  EXPECT_GT((worst_of_pages<256, 64, 64>(true)), allowed) << "another sequence's page";
}

// Q, K and V are columns of one tensor, as a projection leaves them: [sequence][row][3][head][column].
TEST_F(AttentionLayouts, PackedProjectionIsReadInPlace) {
  constexpr int heads = 2, size = 128, rows = 200, sequences = 2;
  Problem p = ragged({rows, rows}, {rows, rows}, heads, heads);
  p.visible = causal(p);
  const auto as_it_stands = [](int sequence, int row) { return Place{row, sequence}; };
  Buffers b{p, {sequences, rows}, {sequences, rows}, as_it_stands, as_it_stands, Rows4::Order::rows_first};
  std::vector<bf16> packed;
  for (int i = 0; i < sequences * rows; ++i)
    for (const auto* part : {&b.q.data, &b.k.data, &b.v.data})
      packed.insert(packed.end(), part->begin() + i * heads * size, part->begin() + (i + 1) * heads * size);
  const OnGpu<bf16> qkv{packed}, o{b.o.data};
  const OnGpu<float> log_sums{b.log_sums};
  const auto part = [&](int i) { return rows_first(qkv.get() + i * heads * size, sequences, rows, heads, size, 3 * heads); };
  ForwardPass<128, 128, Causal, Dense, Scaled, true, InOrder> pass{{part(0), part(1), part(2), b.o.tensor(o.get())},
                                                                   {Causal{},
                                                                    Dense{rows, rows},
                                                                    scaled(p),
                                                                    in_order(rows, heads, sequences),
                                                                    1,
                                                                    nullptr,
                                                                    {},
                                                                    log_sums.get(),
                                                                    b.log_sum_strides()}};
  pass.run(Direct{});
  b.o.data = o.host();
  b.log_sums = log_sums.host();
  EXPECT_LE(b.worst(p, true), allowed);
}

}  // namespace
}  // namespace aisp::attention::test
