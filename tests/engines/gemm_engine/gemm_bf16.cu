// SPDX-License-Identifier: Apache-2.0
// C[m][n] = A[m][k] B[n][k] in bf16: squares, projections of Llama 3, a short K and few rows. Large ones are limited by the
// tensor cores and the power cap, small ones by tiles that do not fill the last wave. The engine chooses among seventeen
// tiles by the clock.
#include <aisp/pair.hpp>

#include "product.hpp"

namespace aisp::gemm_engine {
namespace {

using Store = gemm::TmaStore<>;
template <int tile_m, int tile_n, int cluster>
using Cooperative = Tile<bf16, gemm::InTensorCores, Store, tile_m, tile_n, 2, false, cluster>;
template <int tile_m, int tile_n, int cluster>
using Pingpong = Tile<bf16, gemm::InTensorCores, Store, tile_m, tile_n, 2, true, cluster>;
// A third consumer leaves shared memory for one box of staging a warp.
using OneBoxStore = gemm::TmaStore<bf16, 1>;
using Square = Tile<bf16, gemm::InTensorCores, OneBoxStore, 192, 192, 3, false, 1>;

class GemmBf16 final : public ProductWorkload {
 public:
  explicit GemmBf16(Setup& setup)
      : ProductWorkload{setup},
        m_{setup.size("m")},
        n_{setup.size("n")},
        k_{setup.size("k")},
        a_{setup.input<bf16>(m_ * k_, uniform(-1, 1), {.name = "a"})},
        b_{setup.input<bf16>(n_ * k_, uniform(-1, 1), {.name = "b"})},
        c_{setup.output<bf16>(m_ * n_, {.name = "c"})} {
    compare_with(setup, {.m = m_, .n = n_, .k = k_, .b_is_transposed = true}, a_.get(), b_.get(), c_.get());
    const gemm::Problem<bf16, bf16, bf16> problem{.a = a_, .b = b_, .c = c_, .m = m_, .n = n_, .k = k_};
    add<Cooperative<128, 256, 2>, Store>(problem);
    add<Cooperative<128, 256, 1>, Store>(problem);
    add<Cooperative<256, 128, 1>, Store>(problem);
    add<Cooperative<256, 128, 2>, Store>(problem);
    add<Cooperative<128, 192, 2>, Store>(problem);
    add<Cooperative<128, 160, 1>, Store>(problem);
    add<Cooperative<128, 128, 1>, Store>(problem);
    add<Pingpong<128, 128, 1>, Store>(problem);
    add<Pingpong<128, 128, 2>, Store>(problem);
    add<Pingpong<128, 144, 2>, Store>(problem);
    add<Pingpong<128, 160, 1>, Store>(problem);
    add<Pingpong<128, 160, 2>, Store>(problem);
    add<Pingpong<128, 176, 1>, Store>(problem);
    add<Pingpong<128, 176, 2>, Store>(problem);
    add<Pingpong<64, 256, 1>, Store>(problem);
    add<Pingpong<64, 256, 2>, Store>(problem);
    add<Square, OneBoxStore>(problem);
  }

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(m_) * static_cast<double>(n_) * static_cast<double>(k_),
            .math = Math::bf16,
            .bytes = static_cast<double>(a_.bytes() + b_.bytes() + c_.bytes())};
  }
  double expected(std::size_t i) const override {
    const std::size_t row = i / n_, column = i % n_;
    double sum = 0;
    for (std::size_t k = 0; k < k_; ++k) sum += a_.host(row * k_ + k) * b_.host(column * k_ + k);
    return sum;
  }

 private:
  std::size_t m_, n_, k_;
  Input<bf16> a_, b_;
  Output<bf16> c_;
};

}  // namespace

extern constinit const Pair gemm_bf16{
    .teaches = "the GEMM engine beside cuBLASLt in bf16, each with the fastest of what it has for a shape",
    .lesson = "engine_tuned",
    .make = make<GemmBf16>,
    .baseline = library_default,
    .optimized = engine_variants,
    .libraries = library_tuned,
    .bound = Bound::compute,
    .tolerance = rounded_to_bf16,
    .needs = {.min_sm = 90, .max_sm = 90},
    .sizes = sizes({{.name = "m", .full = 8192},
                    {.name = "n", .full = 8192, .multiple = 8},
                    {.name = "k", .full = 8192, .multiple = 8},
                    candidate}),
    .sweep = cases({{"square_2048", "m=2048,n=2048,k=2048"},
                    {"square_4096", "m=4096,n=4096,k=4096"},
                    {"square_8192", "m=8192,n=8192,k=8192"},
                    {"llama3_8b_qkv", "m=4096,n=6144,k=4096"},
                    {"llama3_8b_up", "m=4096,n=14336,k=4096"},
                    {"llama3_70b_down", "m=4096,n=8192,k=28672"},
                    {"short_k", "m=16384,n=4096,k=1024"},
                    {"few_rows", "m=1024,n=5120,k=5120"}}),
    .edges = cases({{"one_row", "m=1,n=64,k=64"}, {"tails", "m=257,n=328,k=136"}, {"one_column_more", "m=513,n=264,k=200"}}),
    .reference_samples = 512,
};

}  // namespace aisp::gemm_engine
