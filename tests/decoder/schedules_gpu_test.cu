// SPDX-License-Identifier: Apache-2.0
// A request's tokens and states have the same bits alone and in any batch, in chunks or not, over contiguous keys and over pages,
// and they are those of float64 but for rounding.
#include <aisp/libraries/cublaslt.hpp>

#include <decoder/reference.cuh>
#include <decoder/trace.hpp>

#include "decoder_example.cuh"
#include "narrow_model.hpp"

namespace aisp::decoder::test {
namespace {

class DecoderGpu : public GpuTest<9, 99> {};

struct Served {
  std::vector<int> prompt;
  int outputs;
};

constexpr int positions = 1200, most_rows = 2304;

std::vector<Served> requests(const Shape& shape) {
  std::vector<Served> all;
  for (const auto& [length, outputs] : {std::pair{1, 4}, {15, 3}, {16, 5}, {17, 1}, {65, 6}, {511, 4}, {512, 3}, {1100, 8}}) {
    Served served{{}, outputs};
    for (int i = 0; i < length; ++i)
      served.prompt.push_back(static_cast<int>(random_bits(static_cast<std::uint64_t>(length), static_cast<std::uint64_t>(i)) %
                                               static_cast<std::uint64_t>(shape.vocabulary())));
    all.push_back(served);
  }
  return all;
}

// A scheduler decides how many tokens of each request the next step takes.
using Schedule = std::function<std::vector<int>(const std::vector<int>& left)>;

// Runs requests until all have their outputs. `make` makes a Step of a batch.
template <class Make>
std::vector<std::vector<Chosen>> serve(const NarrowModel& model, const Shape& shape, const std::vector<Served>& all,
                                       const Make& make, const Schedule& schedule) {
  std::vector<std::vector<Chosen>> results(all.size());
  std::vector<std::vector<int>> tokens;
  for (const Served& served : all) tokens.push_back(served.prompt);
  std::vector<int> done(all.size());
  for (;;) {
    std::vector<int> left;
    for (std::size_t i = 0; i < all.size(); ++i)
      left.push_back(static_cast<int>(results[i].size()) == all[i].outputs ? 0 : static_cast<int>(tokens[i].size()) - done[i]);
    if (std::ranges::all_of(left, [](int count) { return count == 0; })) return results;
    const std::vector<int> taken = schedule(left);
    std::vector<Span> spans;
    std::vector<int> step_tokens;
    std::vector<std::size_t> choosing;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (taken[i] == 0) continue;
      const bool last = taken[i] == left[i];
      spans.push_back({static_cast<int>(i), done[i], taken[i], last});
      for (int t = 0; t < taken[i]; ++t) step_tokens.push_back(tokens[i][static_cast<std::size_t>(done[i] + t)]);
      done[i] += taken[i];
      if (last) choosing.push_back(i);
    }
    if (spans.empty()) continue;
    const Batch batch = model.upload(Arranged{shape, spans}, step_tokens);
    run(make(batch), nullptr);
    check(cudaDeviceSynchronize());
    const std::vector<int> next = model.chosen_tokens();
    const std::vector<bf16> states = model.chosen_states();
    for (std::size_t c = 0; c < choosing.size(); ++c) {
      Chosen chosen{next[c], std::vector<unsigned short>(static_cast<std::size_t>(shape.hidden))};
      std::memcpy(chosen.state.data(), states.data() + c * static_cast<std::size_t>(shape.hidden), chosen.state.size() * 2);
      tokens[choosing[c]].push_back(chosen.token);
      results[choosing[c]].push_back(std::move(chosen));
    }
  }
}

std::vector<std::vector<Chosen>> alone(const NarrowModel& model, const Shape& shape, const std::vector<Served>& all) {
  const CacheMemory memory{shape, static_cast<int>(all.size()), positions};
  const auto make = [&](const Batch& batch) {
    return Step<attention::ContiguousCache>{model.model(), batch, memory.contiguous(), memory.layer_elements, model.next()};
  };
  return serve(model, shape, all, make, [](const std::vector<int>& left) {
    std::vector<int> taken(left.size());
    const auto first = std::ranges::find_if(left, [](int count) { return count > 0; });
    taken[static_cast<std::size_t>(first - left.begin())] = *first;
    return taken;
  });
}

// Each request is in a step or not; of a prompt that is, some tokens or all.
Schedule at_random(std::uint64_t seed) {
  return [seed, draw = std::uint64_t{0}](const std::vector<int>& left) mutable {
    std::vector<int> taken(left.size());
    for (std::size_t i = 0; i < left.size(); ++i) {
      const std::uint64_t bits = random_bits(seed, draw++);
      if (left[i] == 0 || bits % 3 == 0) continue;
      taken[i] = bits >> 8 & 1 ? left[i] : 1 + static_cast<int>((bits >> 16) % static_cast<std::uint64_t>(left[i]));
    }
    return taken;
  };
}

template <class AnyStep = Step<attention::PagedCache<page_rows>>>
int schedules_that_differ(NarrowModel& model, const Shape& shape, int schedules, bool tuned) {
  const std::vector<Served> all = requests(shape);
  const auto expected = alone(model, shape, all);
  const auto count = static_cast<int>(all.size());
  const CublasLt lt;
  int different = 0;
  for (int s = 0; s < schedules; ++s) {
    const CacheMemory memory{shape, count, (positions + page_rows - 1) / page_rows * page_rows};
    PageAllocator pages{count * pages_for(positions), static_cast<std::uint64_t>(s)};
    PageTable table{pages, count, pages_for(positions)};
    for (int i = 0; i < count; ++i) table.grow(i, static_cast<int>(all[static_cast<std::size_t>(i)].prompt.size()) + 8);
    const OnGpu<int> entries{{table.entries().begin(), table.entries().end()}};
    const auto make = [&](const Batch& batch) {
      if (tuned) model.products.tune(lt, nullptr, model.weights(), batch.rows, batch.chosen);
      AnyStep step;
      static_cast<Step<attention::PagedCache<page_rows>>&>(step) = {
          model.model(), batch, memory.paged(entries.get(), table.stride()), memory.layer_elements, model.next()};
      return step;
    };
    different += serve(model, shape, all, make, at_random(static_cast<std::uint64_t>(s))) != expected;
  }
  for (const unsigned ticket : model.tickets()) EXPECT_EQ(ticket, 0u);
  return different;
}

TEST_F(DecoderGpu, RandomSchedulesGiveTheSameBits) {
  for (const Shape& shape : {narrow(2), narrow(1, 64), narrow(1, 128, 1000)}) {
    NarrowModel model{shape, most_rows, positions};
    EXPECT_EQ(schedules_that_differ(model, shape, 80, false), 0) << shape.head_size << " columns, " << shape.words << " words";
  }
}

TEST_F(DecoderGpu, TunedProductsGiveTheSameBits) {
  const Shape shape = narrow(2);
  NarrowModel model{shape, most_rows, positions};
  EXPECT_EQ(schedules_that_differ(model, shape, 4, true), 0);
}

// A product whose sums go the other way in steps of many rows.
struct OtherOrder : Step<attention::PagedCache<page_rows>> {
  void project(cudaStream_t stream, int layer) const;
};
__global__ void backward_product_kernel(const bf16* weights, const bf16* x, bf16* y, int outputs, int depth) {
  const int output = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (output >= outputs) return;
  float sum = 0;
  for (int i = depth - 1; i >= 0; --i)
    sum += __bfloat162float(x[static_cast<std::size_t>(blockIdx.y) * depth + i]) *
           __bfloat162float(weights[static_cast<std::size_t>(output) * depth + i]);
  y[static_cast<std::size_t>(blockIdx.y) * outputs + output] = __float2bfloat16_rn(sum);
}
void OtherOrder::project(cudaStream_t stream, int layer) const {
  if (batch.rows <= 16) return Step::project(stream, layer);
  const Shape& s = model.shape;
  backward_product_kernel<<<dim3{static_cast<unsigned>((s.qkv_columns() + 255) / 256), static_cast<unsigned>(batch.rows)}, 256, 0,
                            stream>>>(model.weights.qkv + static_cast<std::size_t>(layer) * model.products->qkv.elements(),
                                      model.workspace.normed, model.workspace.qkv, s.qkv_columns(), s.hidden);
}
TEST_F(DecoderGpu, AProductInAnotherOrderIsSeen) {
  const Shape shape = narrow(2);
  NarrowModel model{shape, most_rows, positions};
  EXPECT_EQ((schedules_that_differ<OtherOrder>(model, shape, 5, false)), 5);
}

double relative_error(const std::vector<Chosen>& chosen, const std::vector<double>& expected, std::size_t first_row,
                      std::size_t hidden) {
  double error = 0, norm = 0;
  for (std::size_t c = 0; c < chosen.size(); ++c)
    for (std::size_t i = 0; i < hidden; ++i) {
      const double want = expected[(first_row + c) * hidden + i];
      const float got = __bfloat162float(__builtin_bit_cast(bf16, chosen[c].state[i]));
      error += (got - want) * (got - want), norm += want * want;
    }
  return std::sqrt(error / norm);
}

TEST_F(DecoderGpu, StatesAreThoseOfFloat64) {
  for (const Shape& shape : {narrow(2), narrow(2, 64)}) {
    NarrowModel model{shape, most_rows, positions};
    const std::vector<Served> all = requests(shape);
    const auto results = alone(model, shape, all);
    Cublas cublas;
    for (std::size_t r = 0; r < all.size(); ++r) {
      std::vector<int> tokens = all[r].prompt;
      for (const Chosen& chosen : results[r]) tokens.push_back(chosen.token);
      tokens.pop_back();
      const int length = static_cast<int>(tokens.size());
      const auto reference = reference::forward(cublas, nullptr, shape, model.weights(), tokens, std::span{&length, 1});
      const double error =
          relative_error(results[r], reference.normed, all[r].prompt.size() - 1, static_cast<std::size_t>(shape.hidden));
      EXPECT_LT(error, 1.2e-2) << "request of " << all[r].prompt.size() << " tokens";
      EXPECT_GT(error, 1e-4);
      std::printf("request of %zu tokens: relative error %.2e\n", all[r].prompt.size(), error);
    }
  }
}

// The reference itself, by loops on the CPU.
TEST_F(DecoderGpu, TheReferenceIsTheModel) {
  const Shape s = narrow(2);
  const NarrowModel model{s, 64, 64};
  const std::vector<int> lengths{1, 9, 20};
  std::vector<int> tokens;
  for (int i = 0; i < 30; ++i) tokens.push_back(static_cast<int>(random_bits(3, static_cast<std::uint64_t>(i)) % 512));
  Cublas cublas;
  const auto got = reference::forward(cublas, nullptr, s, model.weights(), tokens, lengths);

  const auto values = [](std::vector<bf16> from) {
    std::vector<double> wide;
    for (const bf16 value : from) wide.push_back(static_cast<double>(__bfloat162float(value)));
    return wide;
  };
  const auto h = static_cast<std::size_t>(s.hidden), q_columns = static_cast<std::size_t>(s.q_columns()),
             d = static_cast<std::size_t>(s.head_size);
  const auto columns = static_cast<std::size_t>(s.qkv_columns()), ffn = static_cast<std::size_t>(s.ffn),
             kv_columns = static_cast<std::size_t>(s.kv_columns());
  const auto embedding = values(normal_values(static_cast<std::size_t>(s.vocabulary()) * h, 1, 0.3)),
             norms = values(normal_values(5 * h, 2, 0.1, 1));
  const auto qkv = values(normal_values(2 * columns * h, 3, 1 / std::sqrt(512.0))),
             o = values(normal_values(2 * h * q_columns, 4, 1 / std::sqrt(512.0 * 4)));
  const auto gate_up = values(normal_values(4 * ffn * h, 5, 1 / std::sqrt(512.0))),
             down = values(normal_values(2 * h * ffn, 6, 1 / std::sqrt(768.0 * 4)));
  using Row = std::vector<double>;
  const auto product = [](const Row& x, const std::vector<double>& w, std::size_t first, std::size_t outputs) {
    Row y(outputs);
    for (std::size_t n = 0; n < outputs; ++n)
      for (std::size_t i = 0; i < x.size(); ++i) y[n] += x[i] * w[first + n * x.size() + i];
    return y;
  };
  const auto normed = [&](const Row& x, std::size_t norm) {
    double squares = 0;
    for (const double value : x) squares += value * value;
    Row y;
    for (std::size_t i = 0; i < h; ++i)
      y.push_back(x[i] / std::sqrt(squares / static_cast<double>(h) + 1e-5) * norms[norm * h + i]);
    return y;
  };
  std::size_t first = 0;
  double worst = 0;
  for (const int length : lengths) {
    std::vector<std::vector<Row>> cache(2);  // [layer][position]: rotated
    for (std::size_t position = 0; position < static_cast<std::size_t>(length); ++position) {
      Row x;
      for (std::size_t i = 0; i < h; ++i) x.push_back(embedding[static_cast<std::size_t>(tokens[first + position]) * h + i]);
      for (std::size_t layer = 0; layer < 2; ++layer) {
        Row row = product(normed(x, 2 * layer), qkv, layer * columns * h, columns);
        for (std::size_t i = 0; i < q_columns + kv_columns; i += 2) {
          const double angle =
              static_cast<double>(position) * std::pow(500000.0, -static_cast<double>(i % d) / static_cast<double>(d));
          const double a = row[i], b = row[i + 1];
          row[i] = a * std::cos(angle) - b * std::sin(angle), row[i + 1] = b * std::cos(angle) + a * std::sin(angle);
        }
        cache[layer].push_back(row);
        Row attended(q_columns);
        for (std::size_t head = 0; head < static_cast<std::size_t>(s.heads); ++head) {
          const std::size_t kv = head / static_cast<std::size_t>(s.group());
          double sum = 0;
          for (const Row& key : cache[layer]) {
            double score = 0;
            for (std::size_t i = 0; i < d; ++i) score += row[head * d + i] * key[q_columns + kv * d + i];
            const double weight = std::exp(score / std::sqrt(static_cast<double>(d)));
            sum += weight;
            for (std::size_t i = 0; i < d; ++i) attended[head * d + i] += weight * key[q_columns + kv_columns + kv * d + i];
          }
          for (std::size_t i = 0; i < d; ++i) attended[head * d + i] /= sum;
        }
        const Row from_o = product(attended, o, layer * h * q_columns, h);
        for (std::size_t i = 0; i < h; ++i) x[i] += from_o[i];
        const Row both = product(normed(x, 2 * layer + 1), gate_up, layer * 2 * ffn * h, 2 * ffn);
        Row active;
        for (std::size_t i = 0; i < ffn; ++i) active.push_back(both[i] / (1 + std::exp(-both[i])) * both[ffn + i]);
        const Row from_down = product(active, down, layer * h * ffn, h);
        for (std::size_t i = 0; i < h; ++i) x[i] += from_down[i];
      }
      const Row last = normed(x, 4);
      for (std::size_t i = 0; i < h; ++i) worst = std::max(worst, std::abs(last[i] - got.normed[(first + position) * h + i]));
    }
    first += static_cast<std::size_t>(length);
  }
  EXPECT_LT(worst, 1e-9);
}

}  // namespace
}  // namespace aisp::decoder::test
