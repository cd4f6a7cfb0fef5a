// SPDX-License-Identifier: Apache-2.0
// y += x w in bf16, as the last product of a block adds to the residual: the engine with what was there fetched by TMA while a
// tile is being multiplied (AddOther), with 16 bytes of a row for each lane (AddRows), and with 4 bytes (Residual), beside
// cuBLASLt with a beta of one. B lies along K.
#include "gemm/add_other.cuh"
#include "product.hpp"

namespace aisp::gemm_engine {
namespace {

template <class Store, int tile_n, bool pingpong>
using Residual = Tile<bf16, gemm::InTensorCores, Store, 128, tile_n, 2, pingpong, 2>;
// The boxes of all rows of a tile take room that stages would have.
struct Exchanging : gemm::Config<gemm::Operand<bf16>, gemm::Operand<bf16>, gemm::InTensorCores,
                                 gemm::Shape{.tile_n = 128, .stages = 5, .pingpong = true, .cluster = 2}> {};
struct ExchangingWide : gemm::Config<gemm::Operand<bf16>, gemm::Operand<bf16>, gemm::InTensorCores,
                                     gemm::Shape{.tile_n = 256, .stages = 3, .cluster = 2}> {};
using Rows = gemm::RowsStore<bf16>;

class GemmResidual final : public Workload {
 public:
  explicit GemmResidual(Setup& setup)
      : m_{setup.size("m")},
        n_{setup.size("n")},
        k_{setup.size("k")},
        x_{setup.input<bf16>(m_ * k_, uniform(-1, 1), {.name = "x"})},
        w_{setup.input<bf16>(n_ * k_, uniform(-1, 1), {.name = "w"})},
        // As large as the product, so that a part that is missing shows.
        y_{setup.inout<bf16>(m_ * n_, uniform(-30, 30), {.name = "y"})},
        library_{setup, {.m = m_, .n = n_, .k = k_, .b_is_transposed = true}},
        exchange_{problem()},
        exchange_wide_{problem()},
        rows_{problem()},
        rows_wide_{problem()},
        pairs_{problem()} {}

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(m_ * n_) * static_cast<double>(k_),
            .math = Math::bf16,
            .bytes = static_cast<double>(x_.bytes() + w_.bytes() + 2 * y_.bytes())};
  }
  double expected(std::size_t i) const override {
    double sum = y_.initial(i);
    for (std::size_t k = 0; k < k_; ++k) sum += x_.host(i / n_ * k_ + k) * w_.host(i % n_ * k_ + k);
    return sum;
  }

  void cublaslt(Launch& launch) { library_.run(launch, x_, w_, y_, 1, 1); }
  void tune(Launch& launch) { library_.tune(launch, x_, w_, y_); }
  void cublaslt_tuned(Launch& launch) { library_.run_tuned(launch, x_, w_, y_, 1, 1); }
  void residual_pairs(Launch& launch) { pairs_.run(launch.stream, {y_}); }
  void add_rows(Launch& launch) { rows_.run(launch.stream, {y_, static_cast<int>(n_)}); }
  void add_rows_wide(Launch& launch) { rows_wide_.run(launch.stream, {y_, static_cast<int>(n_)}); }
  void add_other(Launch& launch) { exchange_.run(launch.stream); }
  void add_other_wide(Launch& launch) { exchange_wide_.run(launch.stream); }

 private:
  gemm::Problem<bf16, bf16, bf16> problem() const { return {.a = x_, .b = w_, .c = y_, .m = m_, .n = n_, .k = k_, .other = y_}; }

  std::size_t m_, n_, k_;
  Input<bf16> x_, w_;
  InOut<bf16> y_;
  LibraryMatmul library_;
  gemm::Gemm<Exchanging, gemm::Bands, gemm::AddOther, gemm::TmaExchange> exchange_;
  gemm::Gemm<ExchangingWide, gemm::Bands, gemm::AddOther, gemm::TmaExchange> exchange_wide_;
  gemm::Gemm<Residual<Rows, 128, true>, gemm::Bands, gemm::AddRows, Rows> rows_;
  gemm::Gemm<Residual<Rows, 256, false>, gemm::Bands, gemm::AddRows, Rows> rows_wide_;
  gemm::Gemm<Residual<Rows, 128, true>, gemm::Bands, gemm::Residual, Rows> pairs_;
};

constexpr Needs by_cublaslt{.libraries = {Library::cublaslt}};

}  // namespace

extern constinit const Pair gemm_residual{
    .teaches = "what is added to a product comes by TMA while the product is made",
    .lesson = "add_other",
    .make = make<GemmResidual>,
    .baseline = {.name = "residual_pairs", .run = call<&GemmResidual::residual_pairs>, .kernels = nothing_spilled},
    .optimized = variants({{.name = "add_rows", .run = call<&GemmResidual::add_rows>, .kernels = nothing_spilled},
                           {.name = "add_rows_wide", .run = call<&GemmResidual::add_rows_wide>, .kernels = nothing_spilled},
                           {.name = "add_other", .run = call<&GemmResidual::add_other>, .kernels = nothing_spilled},
                           {.name = "add_other_wide", .run = call<&GemmResidual::add_other_wide>, .kernels = nothing_spilled}}),
    // It may round the product's parts and the product to bf16 before it adds: three roundings of 1.6e-3.
    .libraries =
        variants({{.name = "cublaslt", .run = call<&GemmResidual::cublaslt>, .needs = by_cublaslt, .tolerance = within(4e-3)},
                  {.name = "cublaslt_tuned",
                   .run = call<&GemmResidual::cublaslt_tuned>,
                   .prepare = call<&GemmResidual::tune>,
                   .needs = by_cublaslt,
                   .tolerance = within(4e-3)}}),
    .bound = Bound::compute,
    .tolerance = rounded_to_bf16,
    .needs = {.min_sm = 90, .max_sm = 90, .dsmem = true},
    .sizes = sizes({{.name = "m", .full = 16384},
                    {.name = "n", .full = 4096, .multiple = 128},
                    {.name = "k", .full = 1024, .multiple = 128}}),
    .sweep = cases({{"short_k", "m=16384,n=4096,k=1024"}, {"llama3_8b_down", "m=4096,n=4096,k=14336"}}),
    .edges = cases({{"one_row", "m=1,n=128,k=128"}, {"tails", "m=301,n=384,k=256"}}),
    .reference_samples = 512,
};

}  // namespace aisp::gemm_engine
