// SPDX-License-Identifier: Apache-2.0
// How often each byte occurs. With one table, equal bytes in a row wait for each other: each count is loaded from what the one
// before has just stored. Four tables that are added up in the end let four such chains run at once.
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>

namespace aisp::bytes {
namespace {

constexpr std::size_t values = 256, tables = 4;

class ByteCounts final : public Workload {
 public:
  explicit ByteCounts(Setup& setup)
      : size_{setup.scaled(std::size_t{4} << 20, tables)},
        text_{setup.input<std::uint8_t>(size_, integers(0, 3))},
        counts_{setup.output<std::uint32_t>(values)} {}

  Cost cost() const override { return {.host_bytes = static_cast<double>(text_.bytes() + counts_.bytes())}; }
  double expected(std::size_t value) const override {
    double count = 0;
    for (std::size_t i = 0; i < size_; ++i) count += text_.host(i) == value ? 1 : 0;
    return count;
  }

  void one_table(Launch&) {
    std::fill_n(counts_.get(), values, 0u);
    for (std::size_t i = 0; i < size_; ++i) ++counts_[text_[i]];
  }
  void four_tables(Launch&) {
    std::array<std::array<std::uint32_t, values>, tables> partial{};
    for (std::size_t i = 0; i < size_; i += tables)
      for (std::size_t t = 0; t < tables; ++t) ++partial[t][text_[i + t]];
    for (std::size_t v = 0; v < values; ++v) counts_[v] = partial[0][v] + partial[1][v] + partial[2][v] + partial[3][v];
  }

 private:
  std::size_t size_;
  Input<std::uint8_t> text_;
  Output<std::uint32_t> counts_;
};

}  // namespace

extern constinit const Pair byte_counts{
    .teaches = "counters in several tables break the chain from one store to the next load",
    .make = make<ByteCounts>,
    .baseline = {.name = "one_table", .run = call<&ByteCounts::one_table>},
    .optimized = variants({{.name = "four_tables", .run = call<&ByteCounts::four_tables>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .reference_samples = 16,
};

}  // namespace aisp::bytes
