// SPDX-License-Identifier: Apache-2.0
// Few tokens times large weights in bf16: Y[tokens][n] = X[tokens][k] W[n][k], limited by reading W, which the engine takes as
// its rows. Large tiles are fewer than multiprocessors, so that K is cut into slices, or all tiles into ranges of equal length,
// whose sums a second kernel adds in a fixed order. Tiles of 64 rows are enough of them to do without.
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>

#include "choice.hpp"

namespace aisp::gemm_engine {
namespace {

// The blocks of a cluster share what they read of X.
template <int tile_m, int tile_n, int cluster = 1>
using Cooperative = Tile<bf16, gemm::InTensorCores, gemm::SlicesStore, tile_m, tile_n, 2, false, cluster>;
template <int tile_n, int cluster>
using Low = Tile<bf16, gemm::InTensorCores, gemm::ColumnsStore<bf16>, 64, tile_n, 1, false, cluster>;

constexpr int most_slices = 16;

class GemmSplitK final : public Workload {
 public:
  explicit GemmSplitK(Setup& setup)
      : tokens_{setup.size("tokens")},
        n_{setup.size("n")},
        k_{setup.size("k")},
        x_{setup.input<bf16>(tokens_ * k_, uniform(-1, 1), {.name = "x"})},
        w_{setup.input<bf16>(n_ * k_, uniform(-1, 1), {.name = "w"})},
        y_{setup.output<bf16>(tokens_ * n_, {.name = "y"})},
        parts_{setup.scratch<float>(std::max(most_slices * tokens_ * n_, most_in_ranges()), {.name = "sums of slices"})},
        library_{setup, {.m = tokens_, .n = n_, .k = k_, .b_is_transposed = true}},
        choice_{setup} {
    // The usual first.
    if (tokens_ > 16) {
      add_whole<Low<64, 1>>();
      add_whole<Low<64, 2>>();
      add_whole<Low<32, 1>>();
      add_whole<Low<32, 2>>();
    }
    if (tokens_ > 64) add_whole<Low<128, 2>>();
    add_whole<Low<16, 1>>();
    add_whole<Low<16, 2>>();
    add<Cooperative<128, 64>>();
    add<Cooperative<256, 64>>();
    add<Cooperative<128, 128>>();
    add<Cooperative<128, 32>>();
    add<Cooperative<128, 16>>();
    add<Cooperative<128, 64, 2>>();
    add<Cooperative<256, 64, 2>>();
    add<Cooperative<128, 128, 2>>();
    add<Cooperative<256, 128>>();
  }

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(tokens_) * static_cast<double>(n_) * static_cast<double>(k_),
            .math = Math::bf16,
            .bytes = static_cast<double>(x_.bytes() + w_.bytes() + y_.bytes())};
  }
  double expected(std::size_t i) const override {
    const std::size_t token = i / n_, column = i % n_;
    double sum = 0;
    for (std::size_t k = 0; k < k_; ++k) sum += x_.host(token * k_ + k) * w_.host(column * k_ + k);
    return sum;
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant.starts_with("engine")) choice_.report(variant == "engine_tuned", "slices", metrics);
  }

  void cublaslt(Launch& launch) { library_.run(launch, x_, w_, y_); }
  void tune(Launch& launch) { library_.tune(launch, x_, w_, y_); }
  void cublaslt_tuned(Launch& launch) { library_.run_tuned(launch, x_, w_, y_); }
  void engine(Launch& launch) { choice_.run_usual(launch); }
  void choose(Launch& launch) { choice_.choose(launch); }
  void engine_tuned(Launch& launch) { choice_.run_chosen(launch); }

 private:
  template <class C>
  void add() {
    const gemm::Problem<bf16, bf16, float> problem{.a = w_, .b = x_, .c = parts_, .m = n_, .n = tokens_, .k = k_};
    for (const int slices : {4, 2, 8, most_slices}) {
      const gemm::Gemm<C, gemm::KSlices, gemm::Identity, gemm::SlicesStore> product{problem, {.slices = slices}};
      choice_.add({shape_of<C>(), product.schedule().slices,
                   [product, parts = static_cast<const float*>(parts_.get()), y = y_.get()](cudaStream_t stream) {
                     product.run(stream);
                     gemm::sum_slices<16>(stream, parts, product.schedule(), gemm::Identity{}, gemm::ColumnsStore<bf16>{y});
                   }});
    }
    using InRanges = gemm::GemmInRanges<C, gemm::Identity, gemm::ColumnsStore<bf16>>;
    const InRanges in_ranges{{.a = w_, .b = x_, .c = y_, .m = n_, .n = tokens_, .k = k_}, parts_};
    choice_.add({shape_of<C>(), 0, [in_ranges](cudaStream_t stream) { in_ranges.run(stream); }});
  }
  // Without parts, in one kernel.
  template <class C>
  void add_whole() {
    const gemm::Gemm<C, gemm::Bands, gemm::Identity, gemm::ColumnsStore<bf16>> product{
        {.a = w_, .b = x_, .c = y_, .m = n_, .n = tokens_, .k = k_}, {.band = 1}};
    choice_.add({shape_of<C>(), 1, [product](cudaStream_t stream) { product.run(stream); }});
  }
  // Returns the elements for the largest tile.
  static std::size_t most_in_ranges() { return std::size_t{2} * multiprocessors() * 256 * 128; }

  std::size_t tokens_, n_, k_;
  Input<bf16> x_, w_;
  Output<bf16> y_;
  Scratch<float> parts_;
  LibraryMatmul library_;
  Choice choice_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair gemm_split_k{
    .teaches = "the GEMM engine beside cuBLASLt for few tokens, where K must be split to read the weights at full rate",
    .lesson = "engine_tuned",
    .make = make<GemmSplitK>,
    .baseline = {.name = "cublaslt", .run = call<&GemmSplitK::cublaslt>, .needs = {.libraries = {Library::cublaslt}}},
    .optimized = variants({{.name = "engine", .run = call<&GemmSplitK::engine>, .kernels = nothing_spilled},
                           {.name = "engine_tuned",
                            .run = call<&GemmSplitK::engine_tuned>,
                            .prepare = call<&GemmSplitK::choose>,
                            .kernels = nothing_spilled}}),
    .libraries = variants({{.name = "cublaslt_tuned",
                            .run = call<&GemmSplitK::cublaslt_tuned>,
                            .prepare = call<&GemmSplitK::tune>,
                            .needs = {.libraries = {Library::cublaslt}}}}),
    .bound = Bound::memory,
    .tolerance = rounded_to_bf16,
    .needs = {.min_sm = 90, .max_sm = 90},
    .sizes = sizes({{.name = "tokens", .full = 64, .most = 1024, .scales = false},
                    {.name = "n", .full = 4096, .multiple = 8},
                    {.name = "k", .full = 16384, .multiple = 8},
                    candidate}),
    .sweep = cases({{"tokens_16", "tokens=16,n=4096,k=16384"},
                    {"tokens_64", "tokens=64,n=4096,k=16384"},
                    {"tokens_128", "tokens=128,n=4096,k=16384"},
                    {"llama3_8b_down", "tokens=64,n=4096,k=14336"},
                    {"llama3_70b_output", "tokens=64,n=8192,k=8192"},
                    {"llama3_70b_down", "tokens=64,n=8192,k=28672"},
                    {"llama3_70b_down_128", "tokens=128,n=8192,k=28672"}}),
    .edges = cases({{"one_token", "tokens=1,n=64,k=64"}, {"tails", "tokens=67,n=328,k=1032"}}),
    .reference_samples = 512,
};

}  // namespace aisp::gemm_engine
