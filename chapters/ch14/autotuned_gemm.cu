// SPDX-License-Identifier: Apache-2.0
// The four projections of a layer of Llama 13B for seven batches of tokens: C[m][n] = X[m][k] W[n][k] in bf16. With the usual
// tile of 128 x 128 the last wave of tiles is ragged, and SMs are idle under it. A generator can make tiles of any width, and the
// clock says which one a shape wants: 24 configurations of one template are compiled at run time, once, and timed.
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/libraries/fastest.hpp>
#include <aisp/libraries/nvrtc.hpp>
#include <aisp/pair.hpp>

#include <cuda_bf16.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gemm/gemm.hpp"
#include "gemm_candidates.hpp"

namespace aisp::ch14 {
namespace {

using bf16 = __nv_bfloat16;
using Operand = gemm::Operand<bf16>;
// A struct, though an alias does with CUDA 13.0 (gemm/README.md).
template <int tile_n, bool pingpong, int cluster>
struct TunedConfig : gemm::Config<Operand, Operand, gemm::InTensorCores, tuned_shape(tile_n, pingpong, cluster)> {
  static_assert(8 * gemm::TmaStore<>::staging_bytes<tile_n> == staging_bytes(tile_n));
};
using UsualConfig = TunedConfig<128, false, 1>;
using ByRows = gemm::Gemm<UsualConfig, gemm::Bands, gemm::Identity, gemm::RowsStore<>>;
using TunedGemm = gemm::Gemm<UsualConfig>::Prepared;  // the same type for all of them
using TunedProblem = gemm::Problem<bf16, bf16, bf16>;

// Returns the launch of each candidate for one problem, in their order.
template <std::size_t... i>
std::array<TunedGemm, candidates.size()> prepare_candidates(const TunedProblem& problem, std::index_sequence<i...>) {
  return {gemm::Gemm<TunedConfig<candidates[i].tile_n, candidates[i].pingpong, candidates[i].cluster>>{problem}.prepared()...};
}

// Tokens that a server multiplies at a time come in any number, and no one width fills the last wave of all.
constexpr std::array<std::size_t, 7> several_batches{256, 384, 512, 640, 768, 896, 1024};

// Which of the candidates UsualConfig is.
constexpr auto usual = static_cast<std::size_t>(std::ranges::find_if(candidates,
                                                                     [](const gemm::Shape& shape) {
                                                                       return shape.tile_n == UsualConfig::tile_n &&
                                                                              !shape.pingpong && shape.cluster == 1;
                                                                     }) -
                                                candidates.begin());

class AutotunedGemm final : public Workload {
 public:
  explicit AutotunedGemm(Setup& setup)
      : considered_{considered(setup.size("tile_n"))},
        products_{products(setup)},
        team_{setup.threads(std::min(setup.cpus(), static_cast<int>(candidates.size())))},
        nvrtc_{setup},
        reproducible_{setup.reproducible()} {}

  Cost cost() const override {
    Cost cost{.math = Math::bf16};
    for (const Product& product : products_) {
      cost.flops += product.flops();
      cost.bytes += static_cast<double>(product.x.bytes() + product.w.bytes() + product.y.bytes());
    }
    return cost;
  }
  double expected_output(int output, std::size_t i) const override {
    const Product& product = products_[static_cast<std::size_t>(output)];
    const std::size_t row = i / product.n, column = i % product.n;
    double sum = 0;
    for (std::size_t k = 0; k < product.k; ++k)
      sum += product.x.host(row * product.k + k) * product.w.host(column * product.k + k);
    return sum;
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant.starts_with("cublaslt")) return;
    const bool is_tuned = variant == "autotuned", is_fixed = variant == "best_fixed";
    const auto chosen = [&](const Product& product) { return is_tuned ? *product.fastest : is_fixed ? *best_fixed_ : usual; };
    double flops = 0, slots = 0, compile_ms = 0;
    for (const Product& product : products_) {
      flops += product.flops();
      slots += product.flops() / wave_efficiency(candidates[chosen(product)], product.m, product.n, multiprocessors());
      if (is_tuned)
        metrics.report(product.tile_metric.c_str(), candidates[chosen(product)].tile_n, "columns", Metrics::Better::higher);
    }
    metrics.report("wave_efficiency", 100 * flops / slots, "%", Metrics::Better::higher);
    if (is_tuned)
      for (const std::size_t i : considered_) compile_ms += kernels_[i].compile_ms;
    if (is_fixed) compile_ms = kernels_[*best_fixed_].compile_ms;
    if (variant == "usual_compiled_at_run_time") compile_ms = kernels_[usual].compile_ms;
    if (compile_ms > 0) metrics.report(compile_time, compile_ms, "ms", Metrics::Better::lower);
  }

  void block_per_tile(Launch& launch) {
    for (const Product& product : products_)
      product.block_per_tile.run(launch.stream, gemm::gemm_kernel<UsualConfig, gemm::Bands, gemm::Identity, gemm::RowsStore<>>);
  }
  void persistent(Launch& launch) {
    for (const Product& product : products_)
      product.prepared[usual].run(launch.stream, gemm::gemm_kernel<UsualConfig, gemm::Bands, gemm::Identity, gemm::TmaStore<>>);
  }
  void choose_for_all(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    compile(considered_);
    if (!best_fixed_)
      best_fixed_ = choose(launch, [&](std::size_t i) {
        for (const Product& product : products_) run(launch, product, i);
      });
  }
  void best_fixed(Launch& launch) {
    for (const Product& product : products_) run(launch, product, *best_fixed_);
  }
  void choose_for_each(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    compile(considered_);
    for (Product& product : products_)
      if (!product.fastest) product.fastest = choose(launch, [&](std::size_t i) { run(launch, product, i); });
  }
  void autotuned(Launch& launch) {
    for (const Product& product : products_) run(launch, product, *product.fastest);
  }
  void compile_usual(Launch&) { compile({usual}); }
  void usual_compiled_at_run_time(Launch& launch) {
    for (const Product& product : products_) run(launch, product, usual);
  }
  void cublaslt(Launch& launch) {
    for (const Product& product : products_) product.library.run(launch, product.x, product.w, product.y);
  }
  void tune_cublaslt(Launch& launch) {
    for (const Product& product : products_) product.library.tune(launch, product.x, product.w, product.y);
  }
  void cublaslt_tuned(Launch& launch) {
    for (const Product& product : products_) product.library.run_tuned(launch, product.x, product.w, product.y);
  }

 private:
  struct Product {
    std::string tile_metric;
    std::size_t m, n, k;
    Input<bf16> x, w;  // x[m][k], w[n][k]
    Output<bf16> y;
    LibraryMatmul library;
    std::array<TunedGemm, candidates.size()> prepared;
    ByRows::Prepared block_per_tile;
    std::optional<std::size_t> fastest{};  // of the candidates

    double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
  };
  using Indices = std::vector<std::size_t>;

  // 0: of all widths.
  static Indices considered(std::size_t tile_n) {
    Indices all;
    for (std::size_t i = 0; i < candidates.size(); ++i)
      if (tile_n == 0 || static_cast<std::size_t>(candidates[i].tile_n) == tile_n) all.push_back(i);
    // The search's default, which others have to beat.
    if (const auto found = std::ranges::find(all, usual); found != all.end()) std::rotate(all.begin(), found, found + 1);
    if (all.empty()) throw Unsupported{"tiles are 96 to 256 columns wide, not " + std::to_string(tile_n)};
    return all;
  }
  static std::vector<Product> products(Setup& setup) {
    const std::size_t hidden = setup.size("hidden"), ffn = setup.size("ffn"), tokens = setup.size("tokens");
    const std::vector<std::size_t> batches =
        tokens == 0 ? std::vector<std::size_t>{several_batches.begin(), several_batches.end()} : std::vector{tokens};
    std::vector<Product> all;
    const auto add = [&](const std::string& name, std::size_t n, std::size_t k) {
      const auto w = setup.input<bf16>(n * k, uniform(-1, 1));
      for (const std::size_t m : batches) {
        const auto x = setup.input<bf16>(m * k, uniform(-1, 1));
        const auto y = setup.output<bf16>(m * n);
        const TunedProblem problem{.a = x, .b = w, .c = y, .m = m, .n = n, .k = k};
        ByRows::Prepared all_at_once = ByRows{problem}.prepared();
        all_at_once.grid.blocks = static_cast<unsigned>(all_at_once.schedule.most_tiles());
        all.push_back({"tile_n_of_" + name + "_" + std::to_string(m), m, n, k, x, w, y,
                       LibraryMatmul{setup, {.m = m, .n = n, .k = k, .b_is_transposed = true}},
                       prepare_candidates(problem, std::make_index_sequence<candidates.size()>{}), all_at_once});
      }
    };
    if (setup.size("one_product") == 0) {
      add("qkv", 3 * hidden, hidden);
      add("gate_and_up", 2 * ffn, hidden);
      add("down", hidden, ffn);
    }
    add("output", hidden, hidden);
    return all;
  }

  // Those that are not there yet, by all threads; loaded by this one.
  void compile(const Indices& wanted) {
    std::array<CompiledCode, candidates.size()> made;
    std::atomic<std::size_t> next{0};
    team_.run([&](int) {
      for (std::size_t i = next++; i < wanted.size(); i = next++)
        if (!kernels_[wanted[i]]) made[wanted[i]] = nvrtc_->cubin(tuned_source(candidates[wanted[i]]));
    });
    for (const std::size_t i : wanted)
      if (!kernels_[i]) kernels_[i] = load<TunedGemm::Kernel>(made[i]);
  }
  template <class Run>
  std::size_t choose(Launch& launch, const Run& run_candidate) const {
    const auto best = fastest(launch.stream, considered_.size(), [&](std::size_t i) { run_candidate(considered_[i]); });
    if (!best) throw Unsupported{"none of the configurations runs on this GPU"};
    return considered_[*best];
  }
  void run(Launch& launch, const Product& product, std::size_t candidate) const {
    product.prepared[candidate].run(launch.stream, kernels_[candidate].entry);
  }

  Indices considered_;
  std::vector<Product> products_;
  ThreadTeam& team_;
  Opened<Nvrtc> nvrtc_;
  bool reproducible_;
  std::array<CompiledKernel<TunedGemm::Kernel>, candidates.size()> kernels_{};
  std::optional<std::size_t> best_fixed_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair autotuned_gemm{
    .teaches = "which tile a GEMM wants depends on its shape: generated for any width and timed, the last wave is full",
    .lesson = "autotuned",
    .make = make<AutotunedGemm>,
    .baseline = {.name = "block_per_tile", .run = call<&AutotunedGemm::block_per_tile>},
    .optimized = variants({{.name = "persistent", .run = call<&AutotunedGemm::persistent>},
                           {.name = "best_fixed",
                            .run = call<&AutotunedGemm::best_fixed>,
                            .prepare = call<&AutotunedGemm::choose_for_all>,
                            .needs = {.dsmem = true, .libraries = {Library::nvrtc}},
                            .best_of = {"persistent", "usual_compiled_at_run_time"},
                            .kernels = nothing_spilled},
                           {.name = "autotuned",
                            .run = call<&AutotunedGemm::autotuned>,
                            .prepare = call<&AutotunedGemm::choose_for_each>,
                            .needs = {.dsmem = true, .libraries = {Library::nvrtc}},
                            .best_of = {"best_fixed", "persistent", "usual_compiled_at_run_time"},
                            .kernels = nothing_spilled}}),
    // The same configuration as `persistent`: what NVRTC makes of it beside what nvcc does.
    .controls = variants({{.name = "usual_compiled_at_run_time",
                           .run = call<&AutotunedGemm::usual_compiled_at_run_time>,
                           .prepare = call<&AutotunedGemm::compile_usual>,
                           .needs = {.libraries = {Library::nvrtc}}}}),
    .libraries =
        variants({{.name = "cublaslt", .run = call<&AutotunedGemm::cublaslt>, .needs = {.libraries = {Library::cublaslt}}},
                  {.name = "cublaslt_tuned",
                   .run = call<&AutotunedGemm::cublaslt_tuned>,
                   .prepare = call<&AutotunedGemm::tune_cublaslt>,
                   .needs = {.libraries = {Library::cublaslt}}}}),
    .bound = Bound::compute,
    .tolerance = rounded_to_bf16,
    .needs = {.min_sm = 90, .max_sm = 90},
    .overrides = {.setup_seconds = 120},  // the 24, where one CPU compiles them
    // tokens: 0, the seven batches, or one of so many. tile_n: 0, or the only width that is considered. one_product: hidden x
    // hidden alone, the attention's output.
    .sizes = sizes({{.name = "tokens", .full = 0, .most = 65536, .scales = false},
                    {.name = "hidden", .full = 5120, .multiple = 8},
                    {.name = "ffn", .full = 13824, .multiple = 8},
                    {.name = "tile_n", .full = 0, .multiple = tile_step, .most = widest_tile, .scales = false},
                    option("one_product")}),
    .sweep = cases({{"tile_96", "tokens=1024,one_product=1,tile_n=96"},
                    {"tile_112", "tokens=1024,one_product=1,tile_n=112"},
                    {"tile_128", "tokens=1024,one_product=1,tile_n=128"},
                    {"tile_144", "tokens=1024,one_product=1,tile_n=144"},
                    {"tile_160", "tokens=1024,one_product=1,tile_n=160"},
                    {"tile_176", "tokens=1024,one_product=1,tile_n=176"},
                    {"tile_192", "tokens=1024,one_product=1,tile_n=192"},
                    {"tile_208", "tokens=1024,one_product=1,tile_n=208"},
                    {"tile_224", "tokens=1024,one_product=1,tile_n=224"},
                    {"tile_240", "tokens=1024,one_product=1,tile_n=240"},
                    {"tile_256", "tokens=1024,one_product=1,tile_n=256"}}),
    .edges = cases({{"one_token", "tokens=1,hidden=64,ffn=192"},
                    {"tails", "tokens=130,hidden=328,ffn=424"},
                    {"tail_of_a_wide_tile", "tokens=1000,hidden=1272,ffn=8,tile_n=240"},
                    {"one_column_more", "tokens=257,hidden=168,ffn=328,tile_n=160"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch14
