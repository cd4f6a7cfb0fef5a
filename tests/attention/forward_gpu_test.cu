// SPDX-License-Identifier: Apache-2.0
// The forward kernel on dense keys: masks, tails, groups of heads, log-sum-exp, against float64, head by head.
#include "bench.hpp"

namespace aisp::attention::test {
namespace {

class AttentionForward : public GpuTest<9, 9> {};

constexpr auto heads_first_order = Rows4::Order::heads_first, rows_first_order = Rows4::Order::rows_first;

Placing as_it_stands() {
  return [](int sequence, int row) { return Place{row, sequence}; };
}
Buffers dense(const Problem& p, Rows4::Order order = heads_first_order) {
  return {p, {p.sequences(), p.queries[0]}, {p.sequences(), p.keys[0]}, as_it_stands(), as_it_stands(), order};
}
Problem problem(int sequences, int heads, int kv_heads, int queries, int keys, int head_size = 128, int value_size = 128) {
  Problem p;
  p.heads = heads, p.kv_heads = kv_heads, p.head_size = head_size, p.value_size = value_size;
  p.queries.assign(sequences, queries), p.keys.assign(sequences, keys);
  p.scale = 1 / std::sqrt(head_size);
  return p;
}
std::string sizes(const Problem& p) {
  return std::to_string(p.heads) + " heads of " + std::to_string(p.head_size) + ", " + std::to_string(p.queries[0]) +
         " queries, " + std::to_string(p.keys[0]) + " keys";
}

TEST_F(AttentionForward, WithoutMaskTakesAnyLengths) {
  for (const auto& [queries, keys] : {std::pair{128, 128}, {1, 1}, {127, 129}, {129, 127}, {300, 513}, {64, 640}}) {
    const Problem p = problem(2, 4, 4, queries, keys);
    Buffers b = dense(p);
    run_forward<128, 128, true>(b, NoMask{}, Dense{queries, keys}, scaled(p), in_order(queries, 4, 2));
    EXPECT_LE(b.worst(p, true), allowed) << sizes(p);
  }
}

// The last key stands below the row's own, so that a row may see none.
TEST_F(AttentionForward, CausalEndsWithTheLastKey) {
  const OnGpu<unsigned> taken{std::vector<unsigned>{0}};
  for (const auto& [queries, keys] : {std::pair{256, 256}, {1, 130}, {130, 1}, {200, 413}, {413, 200}, {128, 1}}) {
    Problem p = problem(2, 4, 4, queries, keys);
    p.visible = causal(p);
    Buffers b = dense(p, rows_first_order);
    run_forward<128, 128, true>(b, Causal{}, Dense{queries, keys}, scaled(p),
                                longest_first(queries, keys, 256, 4, 1, 2, taken.get()));
    EXPECT_LE(b.worst(p, true), allowed) << sizes(p);
    EXPECT_EQ(taken.host()[0], 0u);
  }
}

TEST_F(AttentionForward, HeadsShareKeys) {
  const OnGpu<unsigned> taken{std::vector<unsigned>{0}};
  for (const int kv_heads : {1, 2, 4, 8}) {
    Problem p = problem(1, 8, kv_heads, 140, 270);
    p.visible = causal(p);
    Buffers b = dense(p);
    run_forward<128, 128, true>(b, Causal{}, Dense{140, 270}, scaled(p),
                                longest_first(140, 270, 256, 8, 8 / kv_heads, 1, taken.get()));
    EXPECT_LE(b.worst(p, true), allowed) << kv_heads << " heads of keys";
  }
}

std::function<bool(int, int, int, int)> window(const Problem& p, int before, int behind) {
  return [offset = p.offset(0), before, behind](int, int, int row, int key) {
    return key >= row + offset - before && key <= row + offset + behind;
  };
}
TEST_F(AttentionForward, WindowsMoveWithTheRow) {
  for (const auto& [before, behind] : {std::pair{0, 0}, {5, 3}, {127, 0}, {128, 0}, {200, 130}, {5000, 5000}})
    for (const auto& [queries, keys] : {std::pair{300, 300}, {150, 520}, {400, 200}}) {
      Problem p = problem(1, 4, 2, queries, keys, 64, 64);
      p.visible = window(p, before, behind);
      Buffers b = dense(p);
      run_forward<64, 64, true>(b, Window{before, behind}, Dense{queries, keys}, scaled(p), in_order(queries, 4, 1));
      EXPECT_LE(b.worst(p, true), allowed) << sizes(p) << ", window " << before << " and " << behind;
    }
}

TEST_F(AttentionForward, FaultsOfWindowsAreSeen) {
  Problem p = problem(1, 4, 2, 150, 520, 64, 64);
  p.visible = window(p, 5, 3);
  Buffers b = dense(p);
  run_forward<64, 64, true>(b, Window{5, 3}, Dense{150, 520}, scaled(p), in_order(150, 4, 1));
  ASSERT_LE(b.worst(p, true), allowed);
  for (const auto& [before, behind] : {std::pair{6, 3}, {4, 3}, {5, 4}, {5, 2}, {4, 4}}) {
    p.visible = window(p, before, behind);
    EXPECT_GT(b.worst(p, false), allowed) << "from " << before << " before to " << behind << " behind";
  }
}

// Blocks of 192 rows, of which whole warpgroups may lie behind the last one.
TEST_F(AttentionForward, ThreeWarpgroupsShareABlock) {
  const OnGpu<unsigned> taken{std::vector<unsigned>{0}};
  for (const auto& [queries, keys] : {std::pair{192, 192}, {1, 1}, {64, 640}, {65, 129}, {191, 385}, {193, 127}, {1000, 1100}}) {
    Problem p = problem(3, 6, 2, queries, keys, 64, 64);
    Buffers b = dense(p);
    run_by_three(b, NoMask{}, Dense{queries, keys}, scaled(p), in_order(queries, 6, 3));
    EXPECT_LE(b.worst(p, true), allowed) << sizes(p);
    b = dense(p);
    run_by_three(b, NoMask{}, Dense{queries, keys}, scaled(p), FullBlocksFirst{in_order(queries, 6, 3), queries, taken.get()});
    EXPECT_LE(b.worst(p, true), allowed) << sizes(p) << ", full blocks first";
    EXPECT_EQ(taken.host()[0], 0u);
    p.visible = causal(p);
    b = dense(p, rows_first_order);
    run_by_three(b, Causal{}, Dense{queries, keys}, scaled(p), longest_first(queries, keys, 128, 6, 3, 3, taken.get()));
    EXPECT_LE(b.worst(p, true), allowed) << sizes(p) << ", causal";
    EXPECT_EQ(taken.host()[0], 0u);
    p.visible = window(p, 100, 30);
    b = dense(p);
    run_by_three(b, Window{100, 30}, Dense{queries, keys}, scaled(p), in_order(queries, 6, 3));
    EXPECT_LE(b.worst(p, true), allowed) << sizes(p) << ", window";
    p.visible = window(p, 99, 30);
    if (keys > 100 && queries > 64) EXPECT_GT(b.worst(p, false), allowed) << sizes(p) << ", another window";
  }
}

TEST_F(AttentionForward, AlibiAddsASlopeInBothDirections) {
  const OnGpu<unsigned> taken{std::vector<unsigned>{0}};
  const std::vector<float> slopes{0.5f, 0.0625f, -0.25f, 0};
  const OnGpu<float> on_gpu{slopes};
  for (const bool ascending : {false, true}) {
    Problem p = problem(1, 4, 4, 200, 413);
    p.visible = causal(p);
    p.score = [&](double scaled, int head, int distance) { return scaled + static_cast<double>(slopes[head]) * distance; };
    Buffers b = dense(p);
    const Alibi score{scaled(p).scale_log2, on_gpu.get()};
    const auto order = longest_first(200, 413, 256, 4, 1, 1, taken.get());
    if (ascending) run_forward<128, 128, true>(b, Ascending<Causal>{}, Dense{200, 413}, score, order);
    else run_forward<128, 128, true>(b, Causal{}, Dense{200, 413}, score, order);
    EXPECT_LE(b.worst(p, true), allowed) << (ascending ? "upwards" : "downwards");
    Problem wrong = p;
    wrong.score = [&](double scaled, int head, int distance) {
      return scaled + static_cast<double>(slopes[(head + 1) % 4]) * distance;
    };
    EXPECT_GT(b.worst(wrong, false), allowed) << "another head's slope";
    wrong.score = [&](double scaled, int head, int distance) { return scaled - static_cast<double>(slopes[head]) * distance; };
    EXPECT_GT(b.worst(wrong, false), allowed) << "downwards instead of upwards";
    // The same for all keys of a row cancels in the result.
    wrong.score = [&](double scaled, int head, int distance) {
      return scaled + static_cast<double>(slopes[head]) * (distance + 1);
    };
    EXPECT_LE(b.worst(wrong, false), allowed);
    EXPECT_GT(b.worst(wrong, true), 1) << "distances counted from the next key, in the log-sum-exp";
  }
}

TEST_F(AttentionForward, SumsMayBeginWithTheSlope) {
  const std::vector<float> slopes{0.5f, 0.0625f, -0.25f, 0};
  const OnGpu<float> on_gpu{slopes};
  Problem p = problem(1, 4, 4, 200, 413);
  p.visible = causal(p);
  p.score = [&](double scaled, int head, int distance) { return scaled + static_cast<double>(slopes[head]) * distance; };
  Buffers b = dense(p);
  run_forward<128, 128, false>(b, Causal{}, Dense{200, 413}, AlibiFirst{scaled(p).scale_log2, on_gpu.get()}, in_order(200, 4, 1));
  EXPECT_LE(b.worst(p, false), allowed);
}

// Documents of these lengths; a row sees its own up to itself.
struct SameDocument {
  const int* document;
  __device__ bool operator()(int, int, int row, int key) const { return key <= row && document[key] == document[row]; }
};

// A sequence of documents, and the lists of its tiles.
class Documents {
 public:
  static constexpr int length = 512 + 40, tiles = (length + 127) / 128;
  static constexpr float cap = 3;

  Documents() {
    for (const int of : {40, 300, 100, 112}) document_.insert(document_.end(), of, static_cast<int>(document_.size()));
    document_.resize(tiles * 128);  // the mask is asked about all rows of the last block
    for (int block = 0; block < tiles; ++block) {
      for (int tile = tiles - 1; tile >= 0; --tile) {
        bool any = false, all = true;
        for (int row = block * 128; row < std::min(length, block * 128 + 128); ++row)
          for (int key = tile * 128; key < std::min(length, tile * 128 + 128); ++key) {
            any = any || visible(row, key);
            all = all && visible(row, key);
          }
        if (any) entries.push_back(tile * 2 + (all ? 0 : 1));
      }
      begins.push_back(static_cast<int>(entries.size()));
    }
  }
  bool visible(int row, int key) const { return key <= row && document_[key] == document_[row]; }
  Problem problem_of_heads(int heads, int kv_heads) const {
    Problem p = problem(1, heads, kv_heads, length, length);
    p.visible = [this](int, int, int row, int key) { return visible(row, key); };
    p.score = [](double scaled, int, int) { return cap * std::tanh(scaled / cap); };
    return p;
  }
  template <class Order>
  void run(Buffers& b, const Order& order) const {
    const OnGpu<int> document{document_}, begins_on_gpu{begins}, entries_on_gpu{entries};
    run_forward<128, 128, false>(b, TileList<SameDocument>{begins_on_gpu.get(), entries_on_gpu.get(), 0, 0, {document.get()}},
                                 Dense{length, length}, Softcap{static_cast<float>(b.problem.scale) / cap, cap * log2_e}, order);
  }

  std::vector<int> begins{0}, entries;

 private:
  std::vector<int> document_;
};

TEST_F(AttentionForward, ListsSayWhichTilesExist) {
  const Documents documents;
  const Problem p = documents.problem_of_heads(4, 2);
  Buffers b = dense(p);
  documents.run(b, in_order(Documents::length, 4, 1));
  EXPECT_LE(b.worst(p, false), allowed);
  Problem wrong = p;
  wrong.score = [](double scaled, int, int) { return 1.1 * Documents::cap * std::tanh(scaled / (1.1 * Documents::cap)); };
  EXPECT_GT(b.worst(wrong, false), allowed) << "another cap";
  wrong.score = [](double scaled, int, int) { return scaled; };
  EXPECT_GT(b.worst(wrong, false), allowed) << "no cap";
  wrong = p;
  wrong.visible = [&](int, int, int row, int key) { return key <= row && documents.visible(row, std::min(key + 1, row)); };
  EXPECT_GT(b.worst(wrong, false), allowed) << "the last key of the document in front";
}

TEST_F(AttentionForward, FaultsOfListsAreSeen) {
  Documents documents;
  const std::vector<int> right = documents.entries;
  const Problem p = documents.problem_of_heads(4, 2);
  Buffers b = dense(p);
  for (int& entry : documents.entries) entry &= ~1;
  documents.run(b, in_order(Documents::length, 4, 1));
  EXPECT_GT(b.worst(p, false), allowed) << "tiles hidden in part taken for whole ones";
  documents.entries = right;
  documents.begins[2] -= 1;
  documents.run(b, in_order(Documents::length, 4, 1));
  EXPECT_GT(b.worst(p, false), allowed) << "a block's last tile given to the next block";
}

// `by_tiles`, whose last block is taken first, decides about the order and about nothing else.
TEST_F(AttentionForward, BlocksWithTheMostTilesComeFirst) {
  const Documents documents;
  const Problem p = documents.problem_of_heads(4, 2);
  std::vector<int> by_tiles;
  for (int block = 0; block < Documents::tiles; ++block) by_tiles.push_back(block);
  std::ranges::stable_sort(by_tiles, {}, [&](int block) { return documents.begins[block + 1] - documents.begins[block]; });
  ASSERT_FALSE(std::ranges::is_sorted(by_tiles));
  const OnGpu<unsigned> taken{std::vector<unsigned>{0}};
  const auto worst = [&](const std::vector<int>& blocks) {
    const OnGpu<int> on_gpu{blocks};
    Buffers b = dense(p);
    documents.run(b, MostTilesFirst{{Documents::tiles, 4, 1, 2, taken.get()}, on_gpu.get()});
    EXPECT_EQ(taken.host()[0], 0u);
    return b.worst(p, false);
  };
  EXPECT_LE(worst(by_tiles), allowed);
  by_tiles[1] = by_tiles[0];
  EXPECT_GT(worst(by_tiles), 1) << "a block left out";
}

// The comparison must see these faults in kernels.
TEST_F(AttentionForward, FaultsAreSeen) {
  const OnGpu<unsigned> taken{std::vector<unsigned>{0}};
  Problem p = problem(1, 8, 4, 300, 333);
  p.visible = causal(p);
  Buffers b = dense(p);
  run_forward<128, 128, true>(b, Causal{}, Dense{300, 333}, scaled(p), longest_first(300, 333, 256, 8, 2, 1, taken.get()));
  ASSERT_LE(b.worst(p, true), allowed);
  const auto seen = [&](const char* fault, const std::function<void(Problem&)>& change) {
    Problem wrong = b.problem;
    change(wrong);
    EXPECT_GT(b.worst(wrong, false), allowed) << fault;
    EXPECT_GT(b.worst(wrong, true), 1) << fault << ", in the log-sum-exp";
  };
  seen("one key more", [&](Problem& w) { w.visible = causal(p, 1); });
  seen("one key less", [&](Problem& w) { w.visible = causal(p, -1); });
  seen("aligned at the beginning", [](Problem& w) { w.visible = [](int, int, int row, int key) { return key <= row; }; });
  seen("a tile lost", [&](Problem& w) {
    w.visible = [c = causal(p)](int s, int h, int row, int key) { return c(s, h, row, key) && key / 128 != 1; };
  });
  seen("another group's keys", [](Problem& w) { w.other_kv_head = [](int head) { return head % 4; }; });
  seen("another scale", [](Problem& w) { w.scale *= 1.01; });
  const std::vector<bf16> right = b.o.data;
  b.o.data[b.o.index({299, 0}, 7, 3)] = Buffers::nan();
  EXPECT_GT(b.worst(p, false), 1) << "one NaN";
  b.o.data = right;
  for (int i = 0; i < 128; ++i) std::swap(b.o.data[b.o.index({17, 0}, 5, i)], b.o.data[b.o.index({18, 0}, 5, i)]);
  EXPECT_GT(b.worst(p, false), allowed) << "two rows exchanged";
}

}  // namespace
}  // namespace aisp::attention::test
