// SPDX-License-Identifier: Apache-2.0
// Decoding over contiguous and paged keys, whole, in fixed pieces and in listed ones, against float64.
#include <attention/decode.hpp>

#include "bench.hpp"

namespace aisp::attention::test {
namespace {

class AttentionDecode : public GpuTest<8, 99> {};

const std::vector<int> lengths{1, 0, 15, 16, 17, 63, 64, 65, 700, 129};

template <int head_size, int group, int queries>
Problem decoding(int kv_heads) {
  Problem p;
  p.heads = group * kv_heads, p.kv_heads = kv_heads, p.head_size = p.value_size = head_size;
  p.queries.assign(lengths.size(), queries), p.keys = lengths;
  p.scale = 1 / std::sqrt(head_size);
  p.visible = causal(p);
  return p;
}
Buffers buffers(const Problem& p, std::pair<int, int> keys, Placing key_at) {
  return {p,
          {p.sequences(), p.queries[0]},
          keys,
          [](int sequence, int row) {
            return Place{row, sequence};
          },
          std::move(key_at),
          Rows4::Order::rows_first};
}

// A problem on the GPU with all that a test needs besides; copies results back into the buffers.
template <int head_size, int group, int queries>
class OnDevice {
 public:
  explicit OnDevice(Buffers& b) : b_{b} {}
  ~OnDevice() { b_.o.data = o_.host(), b_.log_sums = log_sums_.host(); }

  ContiguousCache contiguous() const {
    const Strides strides = b_.k.tensor(nullptr).strides;
    return {k_.get(), v_.get(), strides.row, strides.head, strides.sequence};
  }
  template <int page_size>
  PagedCache<page_size> paged(const int* table, int table_stride) const {
    const Strides strides = b_.k.tensor(nullptr).strides;
    return {k_.get(), v_.get(), strides.row, strides.head, strides.sequence, table, table_stride};
  }
  template <class Cache>
  void whole(const Cache& cache) {
    decode(cache, FixedSplits{lengths_.get(), 1}, o_.get(), log_sums_.get(), b_.problem.sequences());
  }
  // States are left as NaN where no piece writes.
  template <class Cache, class Splits>
  void merged(const Cache& cache, const Splits& splits, int pieces) {
    const int rows = b_.problem.heads * queries;
    const OnGpu<float> parts{std::vector<float>(static_cast<std::size_t>(pieces) * rows * head_size, NAN)};
    const OnGpu<float> part_log_sums{std::vector<float>(static_cast<std::size_t>(pieces) * rows, NAN)};
    decode(cache, splits, parts.get(), part_log_sums.get(), pieces);
    Direct{}(merge_states<head_size, Splits, float, bf16>, merge_grid(rows, b_.problem.sequences()), splits, parts.get(),
             part_log_sums.get(), rows, o_.get(), log_sums_.get());
  }
  // Several launches with the same tickets, results as NaN before each of them.
  void merged_by_last(int splits, int launches) {
    const int rows = b_.problem.heads * queries, pieces = b_.problem.sequences() * splits;
    const OnGpu<unsigned> tickets{std::vector<unsigned>(static_cast<std::size_t>(b_.problem.sequences()) * rows)};
    for (int i = 0; i < launches; ++i) {
      const OnGpu<float> parts{std::vector<float>(static_cast<std::size_t>(pieces) * rows * head_size, NAN)};
      const OnGpu<float> part_log_sums{std::vector<float>(static_cast<std::size_t>(pieces) * rows, NAN)};
      check(cudaMemset(o_.get(), 0xff, b_.o.data.size() * sizeof(bf16)));
      check(cudaMemset(log_sums_.get(), 0xff, b_.log_sums.size() * sizeof(float)));
      decode(contiguous(), MergedByLast<FixedSplits, bf16>{{lengths_.get(), splits}, tickets.get(), o_.get(), log_sums_.get()},
             parts.get(), part_log_sums.get(), pieces);
    }
    EXPECT_EQ(tickets.host(), std::vector<unsigned>(static_cast<std::size_t>(b_.problem.sequences()) * rows));
  }
  const int* lengths_on_gpu() const { return lengths_.get(); }

 private:
  template <class Cache, class Splits, class Out>
  void decode(const Cache& cache, const Splits& splits, Out* o, float* log_sums, int pieces) {
    const Problem& p = b_.problem;
    Direct{}(decode_kernel<head_size, group, queries, Cache, Splits, Out>,
             decode_grid<head_size, group, queries>(p.kv_heads, pieces),
             Decode<Cache, Splits, Out>{q_.get(), cache, splits, p.heads, scaled(p).scale_log2, o, log_sums});
  }
  Buffers& b_;
  const OnGpu<bf16> q_{b_.q.data}, k_{b_.k.data}, v_{b_.v.data}, o_{b_.o.data};
  const OnGpu<float> log_sums_{b_.log_sums};
  const OnGpu<int> lengths_{b_.problem.keys};
};

// The log-sum-exps of decoding stand as [sequence][query][head].
void head_behind_query(Buffers& b) {
  const std::vector<float> from = b.log_sums;
  const Strides to = b.log_sum_strides();
  const int queries = b.problem.queries[0], heads = b.problem.heads;
  for (int s = 0; s < b.problem.sequences(); ++s)
    for (int query = 0; query < queries; ++query)
      for (int head = 0; head < heads; ++head)
        b.log_sums[s * to.sequence + head * to.head + query] = from[(s * queries + query) * heads + head];
}

constexpr int longest = 720;

// `run` decodes on the device with a number of pieces.
template <int head_size, int group, int queries>
void check_contiguous(int kv_heads, const std::vector<int>& pieces,
                      void (*run)(OnDevice<head_size, group, queries>&, int splits)) {
  const Problem p = decoding<head_size, group, queries>(kv_heads);
  for (const int splits : pieces) {
    Buffers b = buffers(p, {p.sequences(), longest}, [](int sequence, int row) { return Place{row, sequence}; });
    {
      OnDevice<head_size, group, queries> device{b};
      run(device, splits);
    }
    head_behind_query(b);
    EXPECT_LE(b.worst(p, true), allowed) << head_size << " columns, groups of " << group << ", " << queries << " queries, "
                                         << splits << " pieces";
  }
}

template <int head_size, int group, int queries>
void check_contiguous(int kv_heads) {
  check_contiguous<head_size, group, queries>(kv_heads, {1, 4}, [](OnDevice<head_size, group, queries>& device, int splits) {
    if (splits == 1) device.whole(device.contiguous());
    else
      device.merged(device.contiguous(), FixedSplits{device.lengths_on_gpu(), splits}, static_cast<int>(lengths.size()) * splits);
  });
}

TEST_F(AttentionDecode, AnyGroupSharesItsKeys) {
  check_contiguous<128, 1, 1>(4);
  check_contiguous<128, 4, 1>(4);
  check_contiguous<64, 16, 1>(4);
  check_contiguous<64, 7, 1>(2);
}

// The last tokens of a sequence: each sees the keys up to its own.
TEST_F(AttentionDecode, SomeQueriesAtOnce) {
  check_contiguous<128, 8, 2>(4);
  check_contiguous<64, 3, 5>(4);
}

template <int head_size, int group, int queries>
void check_merged_by_last(int kv_heads) {
  check_contiguous<head_size, group, queries>(
      kv_heads, {1, 2, 8, 11, 64},
      [](OnDevice<head_size, group, queries>& device, int splits) { device.merged_by_last(splits, 5); });
}

TEST_F(AttentionDecode, TheLastOfARowsPiecesMergesThem) {
  check_merged_by_last<128, 4, 1>(4);
  check_merged_by_last<128, 8, 2>(4);
  check_merged_by_last<64, 1, 1>(4);
  check_merged_by_last<64, 3, 5>(4);
}

TEST_F(AttentionDecode, ListedPiecesAreOfEqualLength) {
  const Problem p = decoding<128, 4, 1>(4);
  Buffers b = buffers(p, {p.sequences(), longest}, [](int sequence, int row) { return Place{row, sequence}; });
  constexpr int wanted = 8;
  const OnGpu<Piece> list{std::vector<Piece>(wanted + lengths.size(), Piece{-1, -1, -1, -1})};
  const OnGpu<int> begins{std::vector<int>(lengths.size() + 1)};
  {
    OnDevice<128, 4, 1> run{b};
    Direct{}(list_pieces, list_pieces_grid(p.sequences()), run.lengths_on_gpu(), p.sequences(), wanted, list.get(), begins.get());
    run.merged(run.contiguous(), ListedSplits{run.lengths_on_gpu(), list.get(), begins.get(), p.sequences()},
               wanted + p.sequences());
  }
  head_behind_query(b);
  EXPECT_LE(b.worst(p, true), allowed);
  const int count = begins.host().back();
  ASSERT_LE(count, wanted + p.sequences());
  const std::vector<Piece> pieces = list.host();
  for (int i = 0; i < count; ++i) EXPECT_LE(pieces[i].end - pieces[i].begin, 192);  // 1070 keys by 8, in multiples of 64
}

TEST_F(AttentionDecode, PagesAreFollowed) {
  constexpr int page_size = 16, entries = longest / page_size + 1;
  const Problem p = decoding<128, 4, 1>(4);
  std::vector<int> table(p.sequences() * entries, 1 << 28);
  int pages = 0, next = 0;
  for (const int length : lengths) pages += (length + page_size - 1) / page_size;
  ASSERT_NE(pages % 7, 0);
  for (int s = 0; s < p.sequences(); ++s)
    for (int page = 0; page * page_size < lengths[s]; ++page, ++next) table[s * entries + page] = next * 7 % pages;
  const auto worst = [&](const std::vector<int>& told, int splits) {
    const OnGpu<int> on_gpu{told};
    Buffers b = buffers(p, {pages, page_size}, [&](int s, int row) {
      return Place{row % page_size, table[s * entries + row / page_size]};
    });
    {
      OnDevice<128, 4, 1> run{b};
      const auto cache = run.paged<page_size>(on_gpu.get(), entries);
      if (splits == 1) run.whole(cache);
      else run.merged(cache, FixedSplits{run.lengths_on_gpu(), splits}, p.sequences() * splits);
    }
    head_behind_query(b);
    return b.worst(p, true);
  };
  std::vector<int> exchanged = table;
  std::swap(exchanged[4 * entries], exchanged[8 * entries + 3]);
  for (const int splits : {1, 3}) {
    EXPECT_LE(worst(table, splits), allowed) << splits << " pieces";
    EXPECT_GT(worst(exchanged, splits), allowed) << "another sequence's page, " << splits << " pieces";
  }
}

TEST_F(AttentionDecode, FaultsAreSeen) {
  const Problem p = decoding<128, 4, 1>(4);
  Buffers b = buffers(p, {p.sequences(), longest}, [](int sequence, int row) { return Place{row, sequence}; });
  {
    OnDevice<128, 4, 1> run{b};
    run.merged(run.contiguous(), FixedSplits{run.lengths_on_gpu(), 4}, p.sequences() * 4);
  }
  ASSERT_LE(b.worst(p, false), allowed);
  Problem wrong = p;
  wrong.visible = [](int s, int, int, int key) { return key != lengths[s] - 1; };
  EXPECT_GT(b.worst(wrong, false), allowed) << "the newest key not seen";
  wrong = p;
  wrong.visible = [](int, int, int, int key) { return key < 576; };
  EXPECT_GT(b.worst(wrong, false), allowed) << "a piece lost";
  wrong = p;
  wrong.other_kv_head = [](int head) { return head % 4; };
  EXPECT_GT(b.worst(wrong, false), allowed) << "another group's keys";
}

}  // namespace
}  // namespace aisp::attention::test
