// SPDX-License-Identifier: Apache-2.0
// A pass refuses heads and strides that do not fit, and two launches that run at the same time need counters of their own.
#include <gmock/gmock.h>

#include "bench.hpp"

namespace aisp::attention::test {
namespace {

class AttentionLaunches : public GpuTest<9, 9> {};

using CausalPass = ForwardPass<128, 128, Causal, Dense, Scaled, false, LongestFirst>;

struct Heads {
  std::size_t q, k, v, o;
};
// Returns what the pass says of so many heads, and of `row` elements from one row of Q to the next; nothing if it is made.
std::string refusal(const Heads& heads, std::size_t row = 128) {
  constexpr std::size_t rows = 128, columns = 128;
  const OnGpu<bf16> memory{std::vector<bf16>(32 * rows * columns)};
  const auto tensor = [&](std::size_t count) { return heads_first(memory.get(), 1, count, rows, columns); };
  Tensors tensors{tensor(heads.q), tensor(heads.k), tensor(heads.v), tensor(heads.o)};
  tensors.q.strides.row = row;
  try {
    const CausalPass pass{tensors, {.mask = {}, .keys = {128, 128}, .score = {1}, .order = {}}};
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}
TEST_F(AttentionLaunches, HeadsThatDoNotFitAreRefused) {
  EXPECT_EQ(refusal({20, 8, 8, 20}),
            "attention: 20 query heads cannot share 8 heads of keys in equal groups; the first number must be a multiple of the "
            "second");
  EXPECT_THAT(refusal({16, 8, 4, 16}), testing::HasSubstr("V has 4 heads and K has 8"));
  EXPECT_THAT(refusal({16, 8, 8, 8}), testing::HasSubstr("O has 8 heads and Q has 16"));
  EXPECT_THAT(refusal({16, 8, 8, 16}, 132), testing::HasSubstr("multiples of 8 elements apart, not 132, 16384 and 262144"));
  EXPECT_EQ(refusal({16, 8, 8, 16}), "");
}

// Causal attention of 1024 tokens with 8 heads on few blocks, so that two of them run side by side, and nearly all turns are
// handed out by the counter.
class Causal1024 {
 public:
  explicit Causal1024(int seed) {
    std::vector<bf16> values(elements);
    for (std::size_t i = 0; i < elements; ++i)
      values[i] = static_cast<float>(noise(seed, 0, 0, static_cast<int>(i / columns), static_cast<int>(i % columns)));
    for (OnGpu<bf16>* of : {&q_, &k_, &v_})
      check(cudaMemcpy(of->get(), values.data(), elements * sizeof(bf16), cudaMemcpyDefault));
  }
  void launch(cudaStream_t stream, unsigned* taken) const {
    const auto tensor = [](const OnGpu<bf16>& of) { return heads_first(of.get(), 1, heads, tokens, columns); };
    const CausalPass pass{{tensor(q_), tensor(k_), tensor(v_), tensor(o_)},
                          {.mask = {},
                           .keys = {tokens, tokens},
                           .score = {0.08838834764831845f * log2_e},
                           .order = longest_first(tokens, tokens, 2 * columns, heads, 1, 1, taken)}};
    constexpr unsigned blocks = 4;
    pass.run(
        [stream](auto kernel, const Grid& grid, const auto&... arguments) { launch_kernel(stream, kernel, grid, arguments...); },
        blocks);
  }
  void forget() const { check(cudaMemset(o_.get(), 0xff, elements * sizeof(bf16))); }
  std::vector<unsigned short> bits() const {
    std::vector<unsigned short> bits(elements);
    check(cudaMemcpy(bits.data(), o_.get(), elements * sizeof(bf16), cudaMemcpyDefault));
    return bits;
  }

 private:
  static constexpr std::size_t heads = 8, tokens = 1024, columns = 128, elements = heads * tokens * columns;
  OnGpu<bf16> q_{std::vector<bf16>(elements)}, k_{std::vector<bf16>(elements)}, v_{std::vector<bf16>(elements)},
      o_{std::vector<bf16>(elements)};
};
class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Whether two launches side by side have the bits that each has alone.
bool keeps_bits_side_by_side(unsigned* taken_by_first, unsigned* taken_by_second) {
  const Causal1024 first{1}, second{2};
  const Stream one, other;
  const OnGpu<unsigned> alone{std::vector<unsigned>{0}};
  first.launch(one, alone.get());
  second.launch(one, alone.get());
  check(cudaDeviceSynchronize());
  const auto of_first = first.bits(), of_second = second.bits();
  first.forget();
  second.forget();
  check(cudaDeviceSynchronize());
  first.launch(one, taken_by_first);
  second.launch(other, taken_by_second);
  check(cudaDeviceSynchronize());
  return first.bits() == of_first && second.bits() == of_second;
}
TEST_F(AttentionLaunches, TwoSideBySideHaveCountersOfTheirOwn) {
  constexpr int times = 5;
  const OnGpu<unsigned> first{std::vector<unsigned>{0}}, second{std::vector<unsigned>{0}};
  for (int i = 0; i < times; ++i) EXPECT_TRUE(keeps_bits_side_by_side(first.get(), second.get()));
  EXPECT_EQ(first.host()[0], 0u);
  EXPECT_EQ(second.host()[0], 0u);
  bool shared_one_shows = false;
  for (int i = 0; i < times && !shared_one_shows; ++i) {
    const OnGpu<unsigned> both{std::vector<unsigned>{0}};
    shared_one_shows = !keeps_bits_side_by_side(both.get(), both.get());
  }
  EXPECT_TRUE(shared_one_shows) << "one counter for both hands a turn to one of them alone";
}

}  // namespace
}  // namespace aisp::attention::test
