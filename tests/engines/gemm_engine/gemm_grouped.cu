// SPDX-License-Identifier: Apache-2.0
// The rows of eight experts, of unequal number and one of them with none, or of many experts that get rows at random, each expert
// with weights of its own, in bf16. A loop of the library's products knows the groups' lengths on the host and leaves
// multiprocessors idle at the end of each; the engine lists row tiles on the GPU, where the lengths are, and does all groups in
// one kernel.
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <array>

#include "choice.hpp"
#include "gemm/grouped.hpp"
#include "gemm/paired.hpp"
#include "moe/ragged_groups.hpp"

namespace aisp::gemm_engine {
namespace {

constexpr std::array<std::size_t, 8> ragged_shares{27, 20, 15, 0, 12, 10, 8, 5};

// How many rows each expert has.
std::vector<int> counts_of(std::size_t rows, std::size_t experts, bool equal) {
  if (equal) return moe::equal_counts(rows, experts);
  if (experts != ragged_shares.size()) return moe::even_counts(rows, experts, 17);
  std::size_t whole = 0, before = 0;
  for (const std::size_t share : ragged_shares) whole += share;
  std::vector<int> counts;
  for (const std::size_t share : ragged_shares) {
    counts.push_back(static_cast<int>(rows * (before + share) / whole - rows * before / whole));
    before += share;
  }
  return counts;
}

// Tiles may end where another expert's rows begin.
using Store = gemm::RowsStore<bf16>;
template <int tile_m, int tile_n, int cluster>
using Cooperative = Tile<bf16, gemm::InTensorCores, Store, tile_m, tile_n, 2, false, cluster>;
template <int tile_m, int tile_n, int cluster>
using Pingpong = Tile<bf16, gemm::InTensorCores, Store, tile_m, tile_n, 2, true, cluster>;
constexpr std::size_t lowest_tile = 64;
// One tile three ways: a block for itself; in clusters of two, one of whose blocks multiplies rows that a group does not have
// where it has an odd number of rows of tiles; and in clusters whose blocks then have two columns.
using Single = Cooperative<128, 256, 1>;
using Clustered = Cooperative<128, 256, 2>;
constexpr int clusters_in_a_band = 8;

class GemmGrouped final : public Workload {
 public:
  explicit GemmGrouped(Setup& setup)
      : rows_{setup.size("rows")},
        n_{setup.size("n")},
        k_{setup.size("k")},
        experts_{setup.size("experts")},
        offsets_{moe::offsets_of(counts_of(rows_, experts_, setup.size("equal") == 1))},
        a_{setup.input<bf16>(rows_ * k_, uniform(-1, 1), {.name = "a"})},
        b_{setup.input<bf16>(experts_ * n_ * k_, uniform(-1, 1), {.name = "b"})},
        offsets_on_gpu_{setup.input<int>(offsets_.size(), moe::these(offsets_), {.name = "offsets", .constant = true})},
        c_{setup.output<bf16>(rows_ * n_, {.name = "c"})},
        tiles_{setup.scratch<gemm::RowTile>(rows_ / lowest_tile + experts_ + 1, {.name = "row tiles"})},
        count_{setup.scratch<int>(1, {.name = "number of row tiles"})},
        workspace_{setup.scratch<std::byte>(gemm::GroupedGemm<Pingpong<64, 256, 1>>::workspace_bytes(rows_, experts_),
                                            {.name = "row tiles of grouped products"})},
        parts_{setup.scratch<float>(most_parts(), {.name = "sums of parts of K"})},
        choice_{setup},
        single_{problem(), offsets_on_gpu_, workspace_, {.band = 2 * clusters_in_a_band}},
        clustered_{problem(), offsets_on_gpu_, workspace_, {.band = clusters_in_a_band}},
        paired_{problem(), offsets_on_gpu_, workspace_, {.band = clusters_in_a_band}} {
    for (std::size_t i = 0; i < experts_; ++i)
      if (rows_of(i) > 0)
        groups_.push_back({i, LibraryMatmul{setup, {.m = rows_of(i), .n = n_, .k = k_, .b_is_transposed = true}}});
    // The ping-pong with tiles of 128 rows is not among them: it takes up to 1.4 times as long in one run as in the next where K
    // is long (tests/engines/README.md).
    add_last_in_ranges<Cooperative<128, 256, 2>>();
    add_last_in_ranges<Cooperative<128, 256, 1>>();
    add<Cooperative<128, 256, 2>>();
    add<Cooperative<128, 256, 1>>();
    add<Cooperative<256, 128, 1>>();
    add<Cooperative<128, 192, 2>>();
    add<Cooperative<128, 128, 1>>();
    add<Cooperative<128, 216, 1>>();
    add<Cooperative<128, 152, 1>>();
    add<Pingpong<64, 256, 1>>();
    add<Cooperative<128, 256, 2>, gemm::PairedGroupedGemm<Cooperative<128, 256, 2>>>();
    add<Pingpong<64, 256, 2>, gemm::PairedGroupedGemm<Pingpong<64, 256, 2>>>();
  }

  Cost cost() const override {
    // The weights of experts without rows need not be read.
    const double weights = static_cast<double>(b_.bytes()) * static_cast<double>(groups_.size()) / static_cast<double>(experts_);
    return {.flops = 2.0 * static_cast<double>(rows_) * static_cast<double>(n_) * static_cast<double>(k_),
            .math = Math::bf16,
            .bytes = weights + static_cast<double>(a_.bytes() + offsets_on_gpu_.bytes() + c_.bytes())};
  }
  double expected(std::size_t i) const override {
    const std::size_t row = i / n_, column = i % n_;
    std::size_t expert = 0;
    while (static_cast<int>(row) >= offsets_[expert + 1]) ++expert;
    double sum = 0;
    for (std::size_t k = 0; k < k_; ++k) sum += a_.host(row * k_ + k) * b_.host((expert * n_ + column) * k_ + k);
    return sum;
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant.starts_with("engine")) choice_.report(variant == "engine_tuned", "band", metrics);
  }

  void cublaslt(Launch& launch) {
    for (const Group& group : groups_) group.library.run(launch, a_of(group), b_of(group), c_of(group));
  }
  void tune(Launch& launch) {
    for (const Group& group : groups_) group.library.tune(launch, a_of(group), b_of(group), c_of(group));
  }
  void cublaslt_tuned(Launch& launch) {
    for (const Group& group : groups_) group.library.run_tuned(launch, a_of(group), b_of(group), c_of(group));
  }
  void engine(Launch& launch) { choice_.run_usual(launch); }
  void choose(Launch& launch) { choice_.choose(launch); }
  void engine_tuned(Launch& launch) { choice_.run_chosen(launch); }
  void single(Launch& launch) { single_.run(launch.stream); }
  void clustered(Launch& launch) { clustered_.run(launch.stream); }
  void paired(Launch& launch) { paired_.run(launch.stream); }

 private:
  struct Group {
    std::size_t expert;
    LibraryMatmul library;
  };
  std::size_t rows_of(std::size_t expert) const {
    return static_cast<std::size_t>(offsets_[expert + 1]) - static_cast<std::size_t>(offsets_[expert]);
  }
  std::size_t first_row(const Group& group) const { return static_cast<std::size_t>(offsets_[group.expert]); }
  const bf16* a_of(const Group& group) const { return a_ + first_row(group) * k_; }
  const bf16* b_of(const Group& group) const { return b_ + group.expert * n_ * k_; }
  bf16* c_of(const Group& group) const { return c_ + first_row(group) * n_; }

  using Problem = gemm::Problem<bf16, bf16, bf16>;
  Problem problem() const { return {.a = a_, .b = b_, .c = c_, .m = rows_, .n = n_, .k = k_, .groups = experts_}; }
  gemm::GroupedRows row_tiles() const { return {.tiles = tiles_, .count = count_, .groups = static_cast<int>(experts_)}; }

  template <class C, class Product = gemm::GroupedGemm<C>>
  void add() {
    for (const int band : {16, 8, 32}) {
      const Product product{problem(), offsets_on_gpu_, workspace_, {.band = band}};
      choice_.add({shape_of<C>(), band, [product](cudaStream_t stream) { product.run(stream); }});
    }
  }
  template <class C>
  void add_last_in_ranges() {
    using LastRound = gemm::LastRoundInRanges<gemm::GroupedRows>;
    static_assert(C::tile_m * C::cluster >= static_cast<int>(lowest_tile), "there would be more row tiles");
    const gemm::GemmInRanges<C, gemm::Identity, Store, LastRound> product{problem(), parts_, {.tiles = row_tiles()}};
    for (const int band : {16, 8, 32})
      choice_.add({shape_of<C>(), band,
                   [=, this](cudaStream_t stream) {
                     launch_kernel(stream, gemm::list_row_tiles_kernel<int>, {.blocks = 1, .threads = 32}, offsets_on_gpu_.get(),
                                   experts_, C::tile_m * C::cluster, band, tiles_.get(), count_.get());
                     product.run(stream);
                   },
                   true});
  }
  // For the largest tiles.
  static std::size_t most_parts() { return std::size_t{2} * multiprocessors() * 128 * 256; }

  std::size_t rows_, n_, k_, experts_;
  std::vector<int> offsets_;
  Input<bf16> a_, b_;
  Input<int> offsets_on_gpu_;
  Output<bf16> c_;
  Scratch<gemm::RowTile> tiles_;
  Scratch<int> count_;
  Scratch<std::byte> workspace_;
  Scratch<float> parts_;
  std::vector<Group> groups_;
  Choice choice_;
  gemm::GroupedGemm<Single> single_;
  gemm::GroupedGemm<Clustered> clustered_;
  gemm::PairedGroupedGemm<Clustered> paired_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair gemm_grouped{
    .teaches = "the GEMM engine's grouped product beside a loop of cuBLASLt over eight experts",
    .lesson = "engine_tuned",
    .make = make<GemmGrouped>,
    .baseline = {.name = "cublaslt", .run = call<&GemmGrouped::cublaslt>, .needs = {.libraries = {Library::cublaslt}}},
    .optimized = variants(
        {{.name = "engine", .run = call<&GemmGrouped::engine>, .needs = {.dsmem = true}, .kernels = nothing_spilled},
         {.name = "single", .run = call<&GemmGrouped::single>, .kernels = nothing_spilled},
         {.name = "clustered", .run = call<&GemmGrouped::clustered>, .needs = {.dsmem = true}, .kernels = nothing_spilled},
         {.name = "paired", .run = call<&GemmGrouped::paired>, .needs = {.dsmem = true}, .kernels = nothing_spilled},
         {.name = "engine_tuned",
          .run = call<&GemmGrouped::engine_tuned>,
          .prepare = call<&GemmGrouped::choose>,
          .needs = {.dsmem = true},
          .kernels = nothing_spilled}}),
    .libraries = variants({{.name = "cublaslt_tuned",
                            .run = call<&GemmGrouped::cublaslt_tuned>,
                            .prepare = call<&GemmGrouped::tune>,
                            .needs = {.libraries = {Library::cublaslt}}}}),
    .bound = Bound::compute,
    .tolerance = rounded_to_bf16,
    .needs = {.min_sm = 90, .max_sm = 90},
    // The library wants each group's matrices at multiples of 256 bytes.
    .sizes = sizes({{.name = "rows", .full = 8192},
                    {.name = "n", .full = 14336, .multiple = 128},
                    {.name = "k", .full = 4096, .multiple = 128},
                    {.name = "experts", .full = 8, .most = 512, .scales = false},
                    option("equal"),
                    candidate}),
    // Mixtral's experts, up and down, for 4096 tokens with two experts each; as many rows for each; few tokens. The experts of
    // Qwen3-30B-A3B.
    .sweep = cases({{"mixtral_up", "rows=8192,n=14336,k=4096"},
                    {"mixtral_down", "rows=8192,n=4096,k=14336"},
                    {"equal_groups", "rows=8192,n=14336,k=4096,equal=1"},
                    {"few_tokens", "rows=512,n=14336,k=4096"},
                    {"qwen3_up", "rows=65536,n=1536,k=2048,experts=128"},
                    {"qwen3_equal", "rows=65536,n=1536,k=2048,experts=128,equal=1"}}),
    .edges = cases({{"one_row", "rows=1,n=128,k=128"},
                    {"tails", "rows=767,n=384,k=256"},
                    {"two_columns", "rows=1999,n=512,k=256"},
                    {"equal_tails", "rows=1001,n=128,k=384,equal=1"}}),
    .reference_samples = 512,
};

}  // namespace aisp::gemm_engine
