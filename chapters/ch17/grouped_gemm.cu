// SPDX-License-Identifier: Apache-2.0
// The first product of 128 experts, each with some 512 rows of its own: 412 GFLOP. One library call for each expert has 24 to 30
// tiles for 132 SMs. One persistent kernel goes through a list of all experts' tiles, which the GPU makes of the offsets, and
// fills every SM to the end. The kernel is gemm_kernel (chapters/shared/gemm/kernel.cuh), its order GroupedRows and the list
// list_row_tiles_kernel (schedule.cuh).
#include <aisp/graph.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <array>
#include <vector>

#include "gemm/grouped.hpp"
#include "grouped_cublas.hpp"
#include "moe/ragged_groups.hpp"

namespace aisp::ch17 {
namespace {

using gemm::bf16;
using Rows = gemm::Operand<bf16>;
using WholeTiles = gemm::Config<Rows, Rows, gemm::InTensorCores, gemm::Shape{.tile_m = 128, .tile_n = 256, .stages = 4}>;
// Each of the two consumers has a tile of 64 rows of its own, and multiplies while the other one stores.
using LowTiles =
    gemm::Config<Rows, Rows, gemm::InTensorCores, gemm::Shape{.tile_m = 64, .tile_n = 256, .stages = 5, .pingpong = true}>;
using TileList = gemm::GroupedGemm<WholeTiles>;
using LowTileList = gemm::GroupedGemm<LowTiles>;

class GroupedGemm final : public Workload {
 public:
  explicit GroupedGemm(Setup& setup)
      : experts_{setup.size("experts")},
        rows_{experts_ * setup.size("rows_per_expert") + setup.size("more_rows")},
        n_{setup.size("n")},
        k_{setup.size("k")},
        offsets_{moe::offsets_of(setup.size("planted") == 1 ? moe::planted_counts(rows_, experts_)
                                                            : moe::even_counts(rows_, experts_, 17))},
        x_{setup.input<bf16>(rows_ * k_, uniform(-1, 1), {.name = "rows in the order of their experts"})},
        w_{setup.input<bf16>(experts_ * n_ * k_, uniform(-1, 1), {.name = "weights"})},  // [expert][n][k]
        starts_{setup.input<int>(experts_ + 1, moe::these(offsets_), {.name = "offsets", .constant = true})},
        equal_starts_{setup.input<int>(experts_ + 1, moe::these(moe::offsets_of(moe::equal_counts(rows_, experts_))),
                                       {.name = "offsets of equal groups", .constant = true})},
        y_{setup.output<bf16>(rows_ * n_, {.name = "y"})},
        tiles_{setup.scratch<std::byte>(LowTileList::workspace_bytes(rows_, experts_), {.name = "row tiles"})},
        lanes_{Lane{setup}, Lane{setup}, Lane{setup}, Lane{setup}},
        library_{setup, n_, k_, offsets_},
        reproducible_{setup.reproducible()},
        tile_list_{problem(), starts_, tiles_},
        low_list_{problem(), starts_, tiles_},
        equal_list_{problem(), equal_starts_, tiles_},
        forked_{setup.event()} {
    std::vector<std::size_t> plan_of_count(rows_ + 1);
    for (std::size_t expert = 0; expert < experts_; ++expert) {
      const std::size_t count = rows_of(expert);
      if (count == 0) continue;
      std::size_t& plan = plan_of_count[count];
      if (plan == 0) {
        for (Lane& lane : lanes_)
          lane.plans.emplace_back(setup, lane.lt, MatmulProblem{.m = count, .n = n_, .k = k_, .b_is_transposed = true});
        plan = lanes_[0].plans.size();
      }
      calls_.push_back({expert, plan - 1});
    }
    for (std::size_t lane = 1; lane < lanes; ++lane) {
      lanes_[lane].stream = setup.stream();
      lanes_[lane].done = setup.event();
    }
  }

  Cost cost() const override {
    const double in_use = static_cast<double>(calls_.size()) / static_cast<double>(experts_);  // others' weights need not be read
    return {.flops = 2.0 * static_cast<double>(rows_ * n_) * static_cast<double>(k_),
            .math = Math::bf16,
            .bytes = static_cast<double>(x_.bytes() + y_.bytes()) + in_use * static_cast<double>(w_.bytes())};
  }
  double expected(std::size_t i) const override {
    const std::size_t row = i / n_, column = i % n_;
    std::size_t expert = 0;
    while (static_cast<int>(row) >= offsets_[expert + 1]) ++expert;
    double sum = 0;
    for (std::size_t k = 0; k < k_; ++k) sum += x_.host(row * k_ + k) * w_.host((expert * n_ + column) * k_ + k);
    return sum;
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    metrics.report_rate("rows", static_cast<double>(rows_), "rows/s");
    if (variant == "tile_list" || variant == "pingpong_64") {
      const std::size_t step = variant == "pingpong_64" ? LowTiles::tile_m : WholeTiles::tile_m;
      std::size_t multiplied = 0;
      for (std::size_t expert = 0; expert < experts_; ++expert) multiplied += (rows_of(expert) + step - 1) / step * step;
      metrics.report("padding", 100.0 * (static_cast<double>(multiplied) / static_cast<double>(rows_) - 1), "%",
                     Metrics::Better::lower);
    }
  }

  void tune(Launch& launch) {
    if (reproducible_) return;
    for (Lane& lane : lanes_)
      for (const Call& call : calls_)
        lane.plans[call.plan]->tune(launch.stream, x_of(call), w_of(call), y_of(call));  // each kind of product once
  }
  void expert_loop(Launch& launch) { loop(launch.stream); }
  void four_streams(Launch& launch) {
    check(cudaEventRecord(forked_, launch.stream));
    for (std::size_t lane = 1; lane < lanes; ++lane) check(cudaStreamWaitEvent(lanes_[lane].stream, forked_));
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      const std::size_t lane = i % lanes;
      run_call(calls_[i], lanes_[lane], lane == 0 ? launch.stream : lanes_[lane].stream);
    }
    for (std::size_t lane = 1; lane < lanes; ++lane) {
      check(cudaEventRecord(lanes_[lane].done, lanes_[lane].stream));
      check(cudaStreamWaitEvent(launch.stream, lanes_[lane].done));
    }
  }
  void tile_list(Launch& launch) { tile_list_.run(launch.stream); }
  void pingpong_64(Launch& launch) { low_list_.run(launch.stream); }
  void equal_rows(Launch& launch) { equal_list_.run(launch.stream); }

  void capture(Launch& launch) {
    tune(launch);
    graph_.capture(launch.stream, [this](cudaStream_t stream) { loop(stream); });
  }
  void loop_graph(Launch& launch) { graph_.launch(launch.stream); }
  void list_pointers(Launch&) { library_.set(x_, w_, y_); }
  void cublas_grouped(Launch& launch) { library_.run(launch.stream); }

 private:
  static constexpr std::size_t lanes = 4;
  // Products that may run at once have a workspace each.
  struct Lane {
    explicit Lane(Setup& setup) : lt{setup} {}
    Opened<CublasLt> lt;
    std::vector<Opened<MatmulPlan>> plans;  // one for each number of rows
    cudaStream_t stream = nullptr;
    cudaEvent_t done = nullptr;
  };
  struct Call {
    std::size_t expert, plan;
  };

  std::size_t rows_of(std::size_t expert) const { return static_cast<std::size_t>(offsets_[expert + 1] - offsets_[expert]); }
  std::size_t first_row(const Call& call) const { return static_cast<std::size_t>(offsets_[call.expert]); }
  const bf16* x_of(const Call& call) const { return x_ + first_row(call) * k_; }
  const bf16* w_of(const Call& call) const { return w_ + call.expert * n_ * k_; }
  bf16* y_of(const Call& call) const { return y_ + first_row(call) * n_; }
  void run_call(const Call& call, const Lane& lane, cudaStream_t stream) const {
    lane.plans[call.plan]->run(stream, x_of(call), w_of(call), y_of(call));
  }
  void loop(cudaStream_t stream) const {
    for (const Call& call : calls_) run_call(call, lanes_[0], stream);
  }
  TileList::Problem problem() const { return {.a = x_, .b = w_, .c = y_, .m = rows_, .n = n_, .k = k_, .groups = experts_}; }

  std::size_t experts_, rows_, n_, k_;
  std::vector<int> offsets_;
  Input<bf16> x_, w_;
  Input<int> starts_, equal_starts_;
  Output<bf16> y_;
  Scratch<std::byte> tiles_;
  std::array<Lane, lanes> lanes_;
  GroupedCublas library_;
  bool reproducible_;
  TileList tile_list_;
  LowTileList low_list_;
  TileList equal_list_;
  std::vector<Call> calls_;
  cudaEvent_t forked_;
  Graph graph_;
};

constexpr Needs by_cublaslt{.libraries = {Library::cublaslt}};
constexpr KernelLimits no_spills{.local_bytes = 0};

}  // namespace

extern constinit const Pair grouped_gemm{
    .teaches = "expert GEMMs of uneven height each fill a fraction of the GPU; one list of all their tiles fills it once",
    .lesson = "tile_list",
    .make = make<GroupedGemm>,
    .baseline = {.name = "expert_loop",
                 .run = call<&GroupedGemm::expert_loop>,
                 .prepare = call<&GroupedGemm::tune>,
                 .needs = by_cublaslt},
    .optimized =
        variants({{.name = "four_streams",
                   .run = call<&GroupedGemm::four_streams>,
                   .prepare = call<&GroupedGemm::tune>,
                   .needs = by_cublaslt},
                  {.name = "tile_list", .run = call<&GroupedGemm::tile_list>, .needs = TileList::needs(), .kernels = no_spills},
                  {.name = "pingpong_64",
                   .run = call<&GroupedGemm::pingpong_64>,
                   .needs = LowTileList::needs(),
                   .same_bits_as = "tile_list",
                   .kernels = no_spills}}),
    // The loop without its launches, and the list where no tile is partly empty.
    .controls = variants({{.name = "loop_graph",
                           .run = call<&GroupedGemm::loop_graph>,
                           .prepare = call<&GroupedGemm::capture>,
                           .needs = by_cublaslt,
                           .same_bits_as = "expert_loop"},
                          {.name = "equal_rows",
                           .run = call<&GroupedGemm::equal_rows>,
                           .needs = TileList::needs(),
                           .outputs = no_outputs,
                           .kernels = no_spills}}),
    .libraries = variants({{.name = "cublas_grouped",
                            .run = call<&GroupedGemm::cublas_grouped>,
                            .prepare = call<&GroupedGemm::list_pointers>,
                            .needs = {.libraries = {Library::cublas}}}}),
    .bound = Bound::compute,
    .tolerance = rounded_to_bf16,
    // cuBLASLt wants each expert's matrices at multiples of 256 bytes.
    .sizes = sizes({{.name = "rows_per_expert", .full = 512, .least = 0},
                    {.name = "more_rows", .full = 0, .least = 0, .scales = false},
                    {.name = "experts", .full = 128, .most = 512, .scales = false},
                    {.name = "n", .full = 1536, .multiple = 128, .most = 16384, .scales = false},
                    {.name = "k", .full = 2048, .multiple = 128, .most = 16384, .scales = false},
                    option("planted")}),
    .sweep = cases({{"rows_16", "rows_per_expert=16"},
                    {"rows_64", "rows_per_expert=64"},
                    {"rows_512", "rows_per_expert=512"},
                    {"rows_4096", "rows_per_expert=4096,experts=16"}}),
    .edges = cases({{"one_row", "rows_per_expert=0,more_rows=1,experts=3,n=128,k=128"},
                    {"around_tiles", "rows_per_expert=90,more_rows=7,experts=12,n=384,k=256,planted=1"},
                    {"one_expert_has_all", "rows_per_expert=500,experts=1,n=256,k=128"},
                    {"fewer_rows_than_experts", "rows_per_expert=0,more_rows=5,experts=40,n=128,k=384"}}),
};

}  // namespace aisp::ch17
