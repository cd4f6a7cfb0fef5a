// SPDX-License-Identifier: Apache-2.0
// Rows in groups for GroupedGemm, of small integers, in matrices that may be parts of wider ones.
#pragma once
#include <limits>

#include "gemm/grouped.hpp"
#include "gemm_case.hpp"

namespace aisp::gemm {

// Eight groups: empty ones at the ends and in between, one row, a whole tile, one more and one less, several tiles.
inline const std::vector<int> eight_groups = {0, 0, 1, 129, 257, 257, 640, 767, 767};
// Tiles in which a consumer, or a block of a cluster, has none of the group's rows, and behind them tiles in which it has.
inline const std::vector<int> half_tiles = {0, 700, 700, 701, 1800};

// rows[row][0 ... length) of a buffer that has NaN where it is not the matrix's.
template <class T>
std::vector<T> embedded(const std::vector<T>& packed, std::size_t length, std::size_t pitch) {
  std::vector<T> wide(packed.size() / length * pitch, T{std::numeric_limits<float>::quiet_NaN()});
  for (std::size_t i = 0; i < packed.size(); ++i) wide[i / length * pitch + i % length] = packed[i];
  return wide;
}

template <class C, class Store = RowsStore<>, template <class, class, class> class Grouped = GroupedGemm>
class RaggedRows {
 public:
  RaggedRows(const std::vector<int>& offsets, std::size_t n, std::size_t k, const Pitches& pitches = {})
      : offsets_{offsets},
        n_{n},
        k_{k},
        pitches_{pitches},
        a_host_{integers<bf16>(rows() * k, 1)},
        b_host_{integers<bf16>(groups() * n * k, 2)},
        a_{embedded(a_host_, k, pitch(pitches.a, k))},
        b_{embedded(b_host_, b_row(), pitch(pitches.b, b_row()))} {}

  // C, of which `told` are the offsets that the GPU has.
  std::vector<float> run(const std::vector<int>& told, GroupedOptions options = {}) const {
    using Engine = Grouped<C, Identity, Store>;
    const std::size_t c_pitch = pitch(pitches_.c, n_);
    const OnGpu<bf16> c{std::vector<bf16>(rows() * c_pitch + 64, bf16{untouched})};
    const OnGpu<int> offsets{told};
    const OnGpu<std::byte> list{std::vector<std::byte>(Engine::workspace_bytes(rows(), groups()))};
    options.pitches = pitches_;
    const Engine engine{{.a = a_.get(), .b = b_.get(), .c = c.get(), .m = rows(), .n = n_, .k = k_, .groups = groups()},
                        offsets.get(),
                        list.get(),
                        options};
    engine.run(nullptr);
    check(cudaDeviceSynchronize());
    const std::vector<float> all = as_floats(c.host());
    std::vector<float> results;
    for (std::size_t i = 0; i < all.size(); ++i)
      if (i % c_pitch < n_ && i / c_pitch < rows()) results.push_back(all[i]);
      else EXPECT_EQ(all[i], untouched) << "element " << i << " is not C's";
    return results;
  }

  auto expected() const {
    return [this](std::size_t row, std::size_t column) {
      std::size_t group = 0;
      while (static_cast<int>(row) >= offsets_[group + 1]) ++group;
      double sum = 0;
      for (std::size_t k = 0; k < k_; ++k) {
        const std::size_t of_b = C::B::major == Major::k ? (group * n_ + column) * k_ + k : (group * k_ + k) * n_ + column;
        sum += static_cast<double>(static_cast<float>(a_host_[row * k_ + k])) *
               static_cast<double>(static_cast<float>(b_host_[of_b]));
      }
      return sum;
    };
  }

 private:
  static std::size_t pitch(std::size_t given, std::size_t length) { return given == 0 ? length : given; }
  std::size_t rows() const { return static_cast<std::size_t>(offsets_.back()); }
  std::size_t groups() const { return offsets_.size() - 1; }
  std::size_t b_row() const { return C::B::major == Major::k ? k_ : n_; }

  std::vector<int> offsets_;
  std::size_t n_, k_;
  Pitches pitches_;
  std::vector<bf16> a_host_, b_host_;
  OnGpu<bf16> a_, b_;
};

}  // namespace aisp::gemm
