// SPDX-License-Identifier: Apache-2.0
// A product of e4m3 as DeepSeek-V3 trains: a scale for each row of A and 128 of K, and one for each 128 x 128 of B, in its six
// projections of 4096 tokens. Every 128 of K sums leave the tensor cores, are scaled and added, which their time must hide.
#include <aisp/pair.hpp>

#include "product.hpp"

namespace aisp::gemm_engine {
namespace {

constexpr std::size_t block = gemm::BlockScaled::block;
constexpr std::size_t blocks_of(std::size_t extent) { return (extent + block - 1) / block; }

using Store = gemm::TmaStore<>;
template <int tile_m, int tile_n, int cluster>
using Cooperative = Tile<e4m3, gemm::BlockScaled, Store, tile_m, tile_n, 2, false, cluster>;
template <int tile_m, int tile_n, int cluster>
using Pingpong = Tile<e4m3, gemm::BlockScaled, Store, tile_m, tile_n, 2, true, cluster>;
using Tall = Tile<e4m3, gemm::BlockScaled, Store, 192, 128, 3, false, 1>;

class GemmBlockScaled final : public ProductWorkload {
 public:
  explicit GemmBlockScaled(Setup& setup)
      : ProductWorkload{setup},
        m_{setup.size("m")},
        n_{setup.size("n")},
        k_{setup.size("k")},
        // Up to the type's largest value, 448, as scales made from each block's largest element leave it.
        a_{setup.input<e4m3>(m_ * k_, normal(0, 90), {.name = "a"})},
        b_{setup.input<e4m3>(n_ * k_, normal(0, 90), {.name = "b"})},
        a_scales_{setup.input<float>(k_ / block * m_, uniform(0.005f, 0.02f), {.name = "scales of a"})},
        b_scales_{setup.input<float>(blocks_of(n_) * (k_ / block), uniform(0.0003f, 0.001f), {.name = "scales of b"})},
        c_{setup.output<bf16>(m_ * n_, {.name = "c"})} {
    const MatmulProblem library{.m = m_,
                                .n = n_,
                                .k = k_,
                                .operands = CUDA_R_8F_E4M3,
                                .b_is_transposed = true,
                                .a_scales = a_scales_,
                                .b_scales = b_scales_};
    compare_with(setup, library, a_.get(), b_.get(), c_.get());
    const gemm::Problem<e4m3, e4m3, bf16> problem{
        .a = a_, .b = b_, .c = c_, .m = m_, .n = n_, .k = k_, .a_scales = a_scales_, .b_scales = b_scales_};
    add<Cooperative<128, 128, 2>, Store>(problem);
    add<Cooperative<128, 128, 1>, Store>(problem);
    add<Cooperative<128, 256, 1>, Store>(problem);
    add<Cooperative<128, 256, 2>, Store>(problem);
    add<Pingpong<64, 128, 1>, Store>(problem);
    add<Pingpong<64, 128, 2>, Store>(problem);
    add<Pingpong<128, 128, 1>, Store>(problem);
    add<Pingpong<128, 128, 2>, Store>(problem);
    add<Tall, Store>(problem);
  }

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(m_) * static_cast<double>(n_) * static_cast<double>(k_),
            .math = Math::fp8,
            .bytes = static_cast<double>(a_.bytes() + b_.bytes() + a_scales_.bytes() + b_scales_.bytes() + c_.bytes())};
  }
  double expected(std::size_t i) const override {
    const std::size_t row = i / n_, column = i % n_;
    double sum = 0;
    for (std::size_t at = 0; at < k_; at += block) {
      double products = 0;
      for (std::size_t k = at; k < at + block; ++k) products += a_.host(row * k_ + k) * b_.host(column * k_ + k);
      sum += products * a_scales_.host(at / block * m_ + row) * b_scales_.host(column / block * (k_ / block) + at / block);
    }
    return sum;
  }

 private:
  std::size_t m_, n_, k_;
  Input<e4m3> a_, b_;
  Input<float> a_scales_, b_scales_;
  Output<bf16> c_;
};

}  // namespace

extern constinit const Pair gemm_block_scaled{
    .teaches = "the GEMM engine beside cuBLASLt with scales for blocks of 128",
    .lesson = "engine_tuned",
    .make = make<GemmBlockScaled>,
    .baseline = library_default,
    .optimized = engine_variants,
    .libraries = library_tuned,
    .bound = Bound::compute,
    .tolerance = rounded_to_bf16,  // errors of sums of 128 products average out over the steps
    .needs = {.min_sm = 90, .max_sm = 90},
    // The library wants whole groups of four scales along K, and the engine rows of them that TMA can begin at.
    .sizes = sizes({{.name = "m", .full = 8192, .multiple = 16},
                    {.name = "n", .full = 4096, .multiple = 16},
                    {.name = "k", .full = 7168, .multiple = 512},
                    candidate}),
    .sweep = cases({{"many_tokens", "m=8192,n=4096,k=7168"},
                    {"kv_down", "m=4096,n=2112,k=7168"},
                    {"q_up", "m=4096,n=24576,k=1536"},
                    {"kv_up", "m=4096,n=32768,k=512"},
                    {"attention_out", "m=4096,n=7168,k=16384"},
                    {"expert_up", "m=4096,n=4096,k=7168"},
                    {"expert_down", "m=4096,n=7168,k=2048"}}),
    .edges = cases({{"least", "m=16,n=16,k=512"}, {"tails", "m=272,n=336,k=1024"}}),
    .reference_samples = 512,
};

}  // namespace aisp::gemm_engine
