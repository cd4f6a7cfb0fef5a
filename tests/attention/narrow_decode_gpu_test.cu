// SPDX-License-Identifier: Apache-2.0
// Decoding over caches of codes against float64 over what the codes stand for: e4m3 as rows, INT4, and e4m3 with values
// transposed in pages. The codes are made here, as the headers describe them.
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <attention/decode.hpp>
#include <attention/decode_narrow.cuh>
#include <attention/decode_wgmma.cuh>
#include <cstdint>
#include <cstdlib>
#include <type_traits>

#include "bench.hpp"

namespace aisp::attention::test {
namespace {

class NarrowDecode : public GpuTest<9> {};
class PageDecode : public GpuTest<9, 9> {};

constexpr int columns = narrow_head, kv_heads = 4;
static_assert(page_head == columns);

// A token, one less and one more than a warp's step, a block's, and a page.
const std::vector<int> lengths{1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 700};

// The values that the codes of a cache stand for, [sequence][KV head][capacity][column].
struct Cached {
  std::vector<int> lengths;
  int capacity;  // rows of a head, a multiple of `unit`
  std::vector<float> k, v;

  Cached(const std::vector<int>& of, int unit)
      : lengths{of}, capacity{(*std::max_element(of.begin(), of.end()) + unit - 1) / unit * unit}, k(rows() * columns), v(k) {}
  std::size_t rows() const { return lengths.size() * kv_heads * capacity; }
  std::size_t row(int sequence, int kv_head, int token) const {
    return (static_cast<std::size_t>(sequence) * kv_heads + kv_head) * capacity + token;
  }
  std::size_t at(int sequence, int kv_head, int token, int column) const {
    return row(sequence, kv_head, token) * columns + column;
  }
  // act(sequence, KV head, token) for all tokens that exist.
  template <class Act>
  void each_token(Act act) const {
    for (int s = 0; s < static_cast<int>(lengths.size()); ++s)
      for (int head = 0; head < kv_heads; ++head)
        for (int token = 0; token < lengths[s]; ++token) act(s, head, token);
  }
};

Problem decoding(const Cached& cached, int group) {
  Problem p;
  p.heads = group * kv_heads, p.kv_heads = kv_heads;
  p.queries.assign(cached.lengths.size(), 1), p.keys = cached.lengths;
  p.other_k = [&](int s, int head, int key, int column) { return double{cached.k[cached.at(s, head, key, column)]}; };
  p.other_v = [&](int s, int head, int key, int column) { return double{cached.v[cached.at(s, head, key, column)]}; };
  return p;
}
std::vector<bf16> queries(const Problem& p) {
  std::vector<bf16> q;
  for (int s = 0; s < p.sequences(); ++s)
    for (int head = 0; head < p.heads; ++head)
      for (int i = 0; i < columns; ++i) q.push_back(static_cast<float>(q_value(p, s, head, 0, i)));
  return q;
}

// [sequence][head][column] and [sequence][head]; the latter may be missing.
struct Results {
  std::vector<float> o, log_sums;
};
// Returns the error of a head in a sequence, of result and log-sum-exp.
double worst(const Problem& p, const Results& found) {
  double worst = 0;
  for (int s = 0; s < p.sequences(); ++s)
    for (int head = 0; head < p.heads; ++head) {
      const HeadResult wanted = expected(p, s, head);
      const std::size_t row = static_cast<std::size_t>(s) * p.heads + head;
      const auto first = found.o.begin() + static_cast<std::ptrdiff_t>(row * columns);
      worst = std::max(worst, distance({first, first + columns}, wanted.o));
      if (found.log_sums.empty()) continue;
      const double off = std::abs(found.log_sums[row] - wanted.log_sums[0]) / (1 + std::abs(wanted.log_sums[0]));
      worst = std::isnan(off) ? std::numeric_limits<double>::infinity() : std::max(worst, off);
    }
  return worst;
}

// Results as fp32, which nothing rounds: of one piece a sequence, or merged.
template <int group, class Cache>
Results decode(const Problem& p, const Cache& cache, int splits = 1) {
  const int sequences = p.sequences(), states = sequences * splits;
  const OnGpu<bf16> q{queries(p)};
  const OnGpu<int> keys{p.keys};
  const auto nothing = [&](int of, int width) {
    return std::vector<float>(static_cast<std::size_t>(of) * p.heads * width, std::numeric_limits<float>::quiet_NaN());
  };
  const OnGpu<float> parts{nothing(states, columns)}, part_log_sums{nothing(states, 1)};
  const FixedSplits pieces{keys.get(), splits};
  Direct{}(
      narrow_decode_kernel<group, Cache, FixedSplits, float>, Grid{dim3{kv_heads, static_cast<unsigned>(states)}, decode_threads},
      Decode<Cache, FixedSplits, float>{q.get(), cache, pieces, p.heads, scaled(p).scale_log2, parts.get(), part_log_sums.get()});
  if (splits == 1) return {parts.host(), part_log_sums.host()};
  const OnGpu<float> o{nothing(sequences, columns)}, log_sums{nothing(sequences, 1)};
  Direct{}(merge_states<columns, FixedSplits, float, float>, merge_grid(p.heads, sequences), pieces, parts.get(),
           part_log_sums.get(), p.heads, o.get(), log_sums.get());
  return {o.host(), log_sums.host()};
}

// Faults that every comparison of a group of four must see.
void expect_faults_seen(const Problem& p, const Results& found, double most) {
  ASSERT_EQ(p.heads, 4 * p.kv_heads);
  Problem wrong = p;
  wrong.visible = [&](int s, int, int, int key) { return p.keys[s] == 1 || key + 1 < p.keys[s]; };
  EXPECT_GT(worst(wrong, found), most) << "the newest key not seen";
  wrong = p;
  wrong.visible = [](int, int, int, int key) { return key / 64 != 1; };
  EXPECT_GT(worst(wrong, found), most) << "64 keys lost";
  wrong = p;
  wrong.other_kv_head = [](int head) { return head % kv_heads; };
  EXPECT_GT(worst(wrong, found), most) << "another group's keys";
  wrong = p;
  wrong.other_v = [&](int s, int head, int key, int column) {
    return p.other_v(s, head, std::min(key ^ 1, p.keys[s] - 1), column);
  };
  EXPECT_GT(worst(wrong, found), most) << "values of the neighbouring token";
}

// The code that is nearest to x / scale; `value`: what it stands for.
std::uint8_t e4m3_code(double x, float scale, float& value) {
  const __nv_fp8_e4m3 code{static_cast<float>(x) / scale};
  value = static_cast<float>(code) * scale;
  return code.__x;
}
constexpr std::uint8_t e4m3_nan = 0x7F, e4m3_448 = 0x7E;

// Codes as rows, NaN behind the last.
struct E4m3Codes : Cached {
  static constexpr float k_scale_of[] = {0.3f, 0.7f, 1.1f, 0.45f}, v_scale_of[] = {1.3f, 0.2f, 0.6f, 0.05f};

  explicit E4m3Codes(const std::vector<int>& of) : Cached{of, 1}, k_codes(rows() * columns, e4m3_nan), v_codes{k_codes} {
    const Problem plain;
    each_token([&](int s, int head, int token) {
      for (int i = 0; i < columns; ++i) {
        const std::size_t to = at(s, head, token, i);
        k_codes[to] = e4m3_code(k_value(plain, s, head, token, i), k_scale_of[head], k[to]);
        v_codes[to] = e4m3_code(v_value(plain, s, head, token, i), v_scale_of[head], v[to]);
      }
    });
  }
  std::vector<std::uint8_t> k_codes, v_codes;
};
struct E4m3OnGpu {
  explicit E4m3OnGpu(const E4m3Codes& of)
      : k{of.k_codes},
        v{of.v_codes},
        k_scales{{std::begin(of.k_scale_of), std::end(of.k_scale_of)}},
        v_scales{{std::begin(of.v_scale_of), std::end(of.v_scale_of)}},
        cache{k.get(), v.get(), k_scales.get(), v_scales.get(), kv_heads, of.capacity} {}
  OnGpu<std::uint8_t> k, v;
  OnGpu<float> k_scales, v_scales;
  E4m3Cache cache;
};

// Weights are rounded to f16 by 2^-11 of themselves at most, 4.9e-4; products and sums are fp32. Twice as much is allowed.
constexpr double allowed_e4m3 = 1e-3;

TEST_F(NarrowDecode, E4m3) {
  const E4m3Codes codes{lengths};
  const E4m3OnGpu on_gpu{codes};
  EXPECT_LE(worst(decoding(codes, 1), decode<1>(decoding(codes, 1), on_gpu.cache)), allowed_e4m3);
  EXPECT_LE(worst(decoding(codes, 8), decode<8>(decoding(codes, 8), on_gpu.cache)), allowed_e4m3);
  const Problem p = decoding(codes, 4);
  const Results found = decode<4>(p, on_gpu.cache);
  EXPECT_LE(worst(p, found), allowed_e4m3);
  expect_faults_seen(p, found, allowed_e4m3);
  E4m3Cache faulty = on_gpu.cache;
  std::swap(faulty.k_scales, faulty.v_scales);
  EXPECT_GT(worst(p, decode<4>(p, faulty)), allowed_e4m3) << "scales of values for those of keys";
}

// Every piece has a key.
TEST_F(NarrowDecode, PiecesAreMerged) {
  const E4m3Codes codes{{641, 700, 129}};
  const E4m3OnGpu on_gpu{codes};
  const Problem p = decoding(codes, 4);
  const Results found = decode<4>(p, on_gpu.cache, 2);
  EXPECT_LE(worst(p, found), allowed_e4m3);
  Problem wrong = p;
  wrong.visible = [](int, int, int, int key) { return key < 384; };
  EXPECT_GT(worst(wrong, found), allowed_e4m3) << "the second piece lost";
}

// Eight codes in a word, as int4_codes.cuh says for either kind.
template <class Codes>
unsigned int4_bits(int code, int place) {
  if constexpr (std::is_base_of_v<OffsetCodes, Codes>) return static_cast<unsigned>(code + 8) << 4 * place;
  else return static_cast<unsigned>(std::abs(code)) << 4 * place | (code < 0 ? 1u << (4 * place + 15) % 32 : 0);
}
half int4_scale(float maximum) { return __float2half_rn(std::max(maximum, 7 * 0x1p-14f) / 7); }
// The same for one of these scales.
int int4_code(float x, half scale, float& value) {
  const float code = std::clamp(std::rint(x / __half2float(scale)), -7.0f, 7.0f);
  value = code * __half2float(scale);
  return static_cast<int>(code);
}

// Behind the last token codes are any, scales of values are large, and those of keys NaN.
template <class Codes>
struct Int4Codes : Cached {
  explicit Int4Codes(const std::vector<int>& of)
      : Cached{of, int4_group},
        k_words(rows() * (columns / 8)),
        v_words(rows() * (columns / 8)),
        k_scales(rows() / int4_group * columns, __float2half_rn(std::numeric_limits<float>::quiet_NaN())),
        v_scales(rows(), __float2half_rn(1000)) {
    const Problem plain;
    each_token([&](int s, int head, int token) {
      if (token % int4_group == 0) quantize_keys(s, head, token);
      float maximum = 0;
      for (int i = 0; i < columns; ++i)
        maximum = std::max(maximum, std::abs(static_cast<float>(v_value(plain, s, head, token, i))));
      const half scale = int4_scale(maximum);
      v_scales[row(s, head, 0) + int4_token_place(token)] = scale;
      for (int i = 0; i < columns; ++i)
        v_words[row(s, head, token) / 2 * 32 + i / 4] |=
            int4_bits<Codes>(int4_code(static_cast<float>(v_value(plain, s, head, token, i)), scale, v[at(s, head, token, i)]),
                             token % 2 * 4 + i % 4);
    });
  }
  std::vector<unsigned> k_words, v_words;
  std::vector<half> k_scales, v_scales;

 private:
  // A group of tokens, from `first` on.
  void quantize_keys(int s, int head, int first) {
    const Problem plain;
    const int end = std::min(first + int4_group, lengths[s]);
    for (int i = 0; i < columns; ++i) {
      float maximum = 0;
      for (int token = first; token < end; ++token)
        maximum = std::max(maximum, std::abs(static_cast<float>(k_value(plain, s, head, token, i))));
      const half scale = int4_scale(maximum);
      k_scales[row(s, head, first) / int4_group * columns + int4_scale_place(i)] = scale;
      for (int token = first; token < end; ++token)
        k_words[row(s, head, token) * 16 + i / 8] |= int4_bits<Codes>(
            int4_code(static_cast<float>(k_value(plain, s, head, token, i)), scale, k[at(s, head, token, i)]), i % 8);
    }
  }
};
template <class Codes>
struct Int4OnGpu {
  explicit Int4OnGpu(const Int4Codes<Codes>& of)
      : k{of.k_words}, v{of.v_words}, k_scales{of.k_scales}, v_scales{of.v_scales}, capacity{of.capacity} {}
  template <class Expand = Codes>
  Int4Cache<Expand> cache() const {
    return {k.get(), v.get(), k_scales.get(), v_scales.get(), kv_heads, capacity};
  }
  OnGpu<unsigned> k, v;
  OnGpu<half> k_scales, v_scales;
  int capacity;
};

// A query times a channel's scale is rounded to f16 besides, by 2e-4 of itself: where scores deviate by 6, as those of one head
// in four do, they and the weights are off by 1.2e-3. The largest of some hundred rows is allowed two and a half times as much.
constexpr double allowed_int4 = 3e-3;

template <class Codes, int group>
void check_int4() {
  const Int4Codes<Codes> codes{lengths};
  const Int4OnGpu<Codes> on_gpu{codes};
  const Problem p = decoding(codes, group);
  const Results found = decode<group>(p, on_gpu.cache());
  EXPECT_LE(worst(p, found), allowed_int4) << "groups of " << group;
  if (group == 4) expect_faults_seen(p, found, allowed_int4);
}

TEST_F(NarrowDecode, Int4) {
  check_int4<ShiftedCodes, 4>();
  check_int4<SplicedCodes, 4>();
  check_int4<SubnormalCodes, 4>();
  check_int4<SplicedCodes, 1>();
  check_int4<SubnormalCodes, 8>();
}

TEST_F(NarrowDecode, Int4CodesTakenForOthersAreSeen) {
  const Int4Codes<SubnormalCodes> codes{lengths};
  const Int4OnGpu<SubnormalCodes> on_gpu{codes};
  const Problem p = decoding(codes, 4);
  EXPECT_GT(worst(p, decode<4>(p, on_gpu.cache<SplicedCodes>())), allowed_int4);
  Int4Codes<SubnormalCodes> moved = codes;
  std::rotate(moved.v_scales.begin(), moved.v_scales.begin() + 1, moved.v_scales.end());
  const Int4OnGpu<SubnormalCodes> faulty{moved};
  EXPECT_GT(worst(p, decode<4>(p, faulty.cache())), allowed_int4) << "scales of other tokens";
}

// Keys rise by a score of 0.5 with each page in one head, and fall in another.
double page_key(int sequence, int head, int token, int column) {
  const double step = 0.5 / (4 * Problem{}.scale) * (token / page_tokens), x = noise(2, sequence, head, token, column);
  if (column == 0 && head == 1) return rounded(step);
  if (column == 0 && head == 2) return rounded(-step);
  return rounded(head == 3 ? 2 * x : x);
}

// Pages of both, [dimension][token] of the values, 448 behind the last token.
struct Pages : Cached {
  static constexpr float k_scale_of[] = {0.02f, 0.1f, 0.07f, 0.05f}, v_scale_of[] = {0.02f, 0.01f, 0.015f, 0.011f};

  Pages() : Cached{{1, 127, 128, 129, 255, 256, 257, 700}, page_tokens}, k_codes(rows() * columns, e4m3_448), v_codes{k_codes} {
    const Problem plain;
    each_token([&](int s, int head, int token) {
      for (int i = 0; i < columns; ++i) {
        const std::size_t to = at(s, head, token, i), page = row(s, head, token / page_tokens * page_tokens) * columns;
        k_codes[to] = e4m3_code(page_key(s, head, token, i), k_scale_of[head], k[to]);
        v_codes[page + i * page_tokens + token % page_tokens] =
            e4m3_code(v_value(plain, s, head, token, i), v_scale_of[head], v[to]);
      }
    });
  }
  std::vector<std::uint8_t> k_codes, v_codes;
};

// The kernel's queries are e4m3, with a scale for each row.
Problem page_decoding(const Pages& pages, int group) {
  Problem p = decoding(pages, group);
  p.other_q = [](int s, int head, int row, int column) {
    float maximum = least_maximum, value = 0;
    for (int i = 0; i < columns; ++i)
      maximum = std::max(maximum, std::abs(static_cast<float>(q_value(Problem{}, s, head, row, i))));
    e4m3_code(q_value(Problem{}, s, head, row, column), maximum / largest_e4m3, value);
    return double{value};
  };
  return p;
}

class PagesOnGpu {
 public:
  explicit PagesOnGpu(const Pages& of)
      : k_{of.k_codes},
        v_{of.v_codes},
        k_scales_{{std::begin(of.k_scale_of), std::end(of.k_scale_of)}},
        v_scales_{{std::begin(of.v_scale_of), std::end(of.v_scale_of)}},
        cache{map(k_, of), map(v_, of), k_scales_.get(), v_scales_.get(), kv_heads, of.capacity / page_tokens} {}

  template <int group>
  static Results decode(const Problem& p, const TransposedCache& cache) {
    const OnGpu<bf16> q{queries(p)};
    const OnGpu<bf16> o{std::vector<bf16>(static_cast<std::size_t>(p.sequences()) * p.heads * columns, Buffers::nan())};
    const OnGpu<int> keys{p.keys};
    Direct{}(page_decode_kernel<group, bf16>,
             Grid{dim3{kv_heads, static_cast<unsigned>(p.sequences())}, page_threads, sizeof(PageRing)}, cache,
             TransposedDecode<bf16>{q.get(), keys.get(), p.heads, scaled(p).scale_log2, o.get()});
    const std::vector<bf16> rounded_o = o.host();
    return {{rounded_o.begin(), rounded_o.end()}, {}};
  }

 private:
  static CUtensorMap map(const OnGpu<std::uint8_t>& codes, const Pages& of) {
    return matrix_map(CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, codes.get(), of.rows(), columns, page_tokens, columns);
  }
  OnGpu<std::uint8_t> k_, v_;
  OnGpu<float> k_scales_, v_scales_;

 public:
  TransposedCache cache;
};

// Each of the 32 addends of an FP8 product loses up to 2^-13 of the largest, together 2^-8 of it: of a score of 2.5, which is the
// largest addend here, 1e-2. Weights in two parts are rounded by 2^-8 at most, and results to bf16.
constexpr double allowed_pages = 1.5e-2;

TEST_F(PageDecode, AnyGroupAndLength) {
  const Pages pages;
  const PagesOnGpu on_gpu{pages};
  EXPECT_LE(worst(page_decoding(pages, 1), PagesOnGpu::decode<1>(page_decoding(pages, 1), on_gpu.cache)), allowed_pages);
  EXPECT_LE(worst(page_decoding(pages, 8), PagesOnGpu::decode<8>(page_decoding(pages, 8), on_gpu.cache)), allowed_pages);
  const Problem p = page_decoding(pages, 4);
  const Results found = PagesOnGpu::decode<4>(p, on_gpu.cache);
  EXPECT_LE(worst(p, found), allowed_pages);
  expect_faults_seen(p, found, allowed_pages);
}

TEST_F(PageDecode, FaultsOfPagesAreSeen) {
  const Pages pages;
  const PagesOnGpu on_gpu{pages};
  const Problem p = page_decoding(pages, 4);
  TransposedCache faulty = on_gpu.cache;
  faulty.v = faulty.k;
  EXPECT_GT(worst(p, PagesOnGpu::decode<4>(p, faulty)), allowed_pages) << "values that are keys";
  faulty = on_gpu.cache;
  --faulty.pages;
  EXPECT_GT(worst(p, PagesOnGpu::decode<4>(p, faulty)), allowed_pages) << "a page less for each head";
}

}  // namespace
}  // namespace aisp::attention::test
