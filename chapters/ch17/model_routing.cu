// SPDX-License-Identifier: Apache-2.0
// Requests that a gate sends to a small, a medium or a large model. Each model's share is a small batch of short products, which
// the host launches one after the other once it knows how long the batches are. With the row counts in device memory gate, sort
// and all products are one graph, and in it the models can run side by side: what the large one's few rows leave free, the others
// use.
#include <cuda_bf16.h>
#include <aisp/device/reduce.cuh>
#include <aisp/graph.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "gemm/gemm.hpp"
#include "layers_reference.cuh"
#include "moe/index.cuh"
#include "moe/routing.hpp"

namespace aisp::ch17 {
namespace {

using bf16 = __nv_bfloat16;
constexpr int models = 3, layers_of[models] = {2, 8, 32}, first_layer[models] = {0, 2, 10}, all_layers = 42;
constexpr int threads = 256;
// The client's wish counts more than the gate's reading of the request, so that rounding moves no request.
constexpr float wanted = 12;

// The model of each request. A block for each; sums are in float64 where `Real` is double.
template <class Real>
__global__ __launch_bounds__(threads) void gate_kernel(const bf16* x, const float* gate, const float* hints, int* model_of,
                                                       int width) {
  __shared__ Real shared[device::largest_block_in_warps];
  Real best = 0;
  int model = 0;
  for (int m = 0; m < models; ++m) {
    Real sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < width; i += threads)
      sum += static_cast<Real>(__bfloat162float(x[std::size_t{blockIdx.x} * width + i])) * static_cast<Real>(gate[m * width + i]);
    const Real logit = device::block_sum(sum, shared) + static_cast<Real>(hints[blockIdx.x * models + m]);
    if (m == 0 || logit > best) {
      best = logit;
      model = m;
    }
  }
  if (threadIdx.x == 0) model_of[blockIdx.x] = model;
}

// Rows in the order of `request_of`, or back.
template <bool back>
__global__ __launch_bounds__(threads) void move_rows_kernel(const uint4* from, const int* request_of, uint4* to, int packets) {
  const std::size_t request = static_cast<std::size_t>(request_of[blockIdx.x]), row = blockIdx.x;
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += threads)
    to[(back ? request : row) * packets + i] = from[(back ? row : request) * packets + i];
}
// Selects each request's own result from those of all models.
__global__ __launch_bounds__(threads) void select_kernel(const uint4* of_models, const int* model_of, uint4* y, int packets) {
  const std::size_t from = static_cast<std::size_t>(model_of[blockIdx.x]) * gridDim.x + blockIdx.x;
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += threads)
    y[std::size_t{blockIdx.x} * packets + i] = of_models[from * packets + i];
}

struct Relu {
  static constexpr int narrowing = 1;
  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const gemm::Fragment&) const {
#pragma unroll
    for (float& sum : sums) sum = fmaxf(sum, 0);
  }
};

using ManyRows = gemm::Config<gemm::Operand<bf16>, gemm::Operand<bf16, gemm::Major::mn>, gemm::InTensorCores,
                              gemm::Shape{.tile_m = 128, .tile_n = 128, .stages = 5}>;
// Small tiles, so that all multiprocessors have one of a hundred rows.
using FewRows = gemm::Config<gemm::Operand<bf16>, gemm::Operand<bf16, gemm::Major::mn>, gemm::InTensorCores,
                             gemm::Shape{.tile_m = 64, .tile_n = 64, .stages = 10, .consumers = 1}>;
// A layer whose rows are a group of which only the GPU knows where it begins and ends.
template <class Config>
using Layer = gemm::Gemm<Config, gemm::GroupedRows, Relu, gemm::RowsStore<bf16>>;

class ModelRouting final : public Workload {
 public:
  explicit ModelRouting(Setup& setup)
      : requests_{setup.size("requests")},
        width_{setup.size("width")},
        shares_{setup.size("small"), setup.size("medium"), 0},
        x_{setup.input<bf16>(requests_ * width_, normal(0, 1), {.name = "requests"})},
        gate_{setup.input<float>(models * width_, normal(0, static_cast<float>(1 / std::sqrt(static_cast<double>(width_)))),
                                 {.name = "gate", .constant = true})},
        hints_{setup.input<float>(requests_ * models,
                                  [this](std::span<float> hints, std::uint64_t seed) { draw_hints(hints, seed); },
                                  {.name = "hints"})},
        weights_{setup.input<bf16>(all_layers * width_ * width_,
                                   normal(0, static_cast<float>(std::sqrt(2.0 / static_cast<double>(width_)))),
                                   {.name = "weights", .constant = true})},
        model_of_{setup.output<int>(requests_, {.name = "models of requests"})},
        y_{setup.output<bf16>(requests_ * width_, {.name = "results"})},
        states_{setup.scratch<bf16>(requests_ * width_), setup.scratch<bf16>(requests_ * width_)},
        of_models_{setup.scratch<bf16>(models * requests_ * width_)},
        request_of_{setup.scratch<int>(requests_)},
        index_{setup.scratch<int>(2 * requests_ + models * tiles() + models + 2)},
        row_tiles_{setup.scratch<gemm::RowTile>(models * most_row_tiles())},
        tile_counts_{setup.scratch<int>(models)},
        host_models_{setup.scratch<int>(requests_, {.memory = Memory::pinned})},
        host_requests_{setup.scratch<int>(requests_, {.memory = Memory::pinned})},
        fp64_{setup.scratch<double>(2 * requests_ * width_)},
        streams_{setup.stream(), setup.stream(), setup.stream(0, true)},
        forked_{setup.event()},
        joined_{setup.event(), setup.event(), setup.event()},
        lts_{Opened<CublasLt>{setup}, Opened<CublasLt>{setup}, Opened<CublasLt>{setup}} {
    if (shares_[0] + shares_[1] > 100) throw Unsupported{"small + medium is 100 at most"};
    shares_[2] = 100 - shares_[0] - shares_[1];
    rows_[0] = requests_ * shares_[0] / 100;
    rows_[1] = requests_ * shares_[1] / 100;
    rows_[2] = requests_ - rows_[0] - rows_[1];
  }

  Cost cost() const override {
    double row_layers = 0, used_layers = 0;
    for (int m = 0; m < models; ++m) {
      row_layers += static_cast<double>(rows_[m]) * layers_of[m];
      used_layers += rows_[m] > 0 ? layers_of[m] : 0;
    }
    return of_layers(row_layers, used_layers);
  }
  void compute_reference(Launch& launch) override {
    launch(gate_kernel<double>, per_request(), x_, gate_, hints_, ids(), width_);
    expected_models_.resize(requests_);
    check(cudaStreamSynchronize(launch.stream));
    check(cudaMemcpy(expected_models_.data(), ids(), requests_ * sizeof(int), cudaMemcpyDeviceToHost));
    const moe::Grouped grouped = moe::group_by_expert(expected_models_, models);
    check(cudaMemcpy(request_of_, grouped.slot_of_row.data(), requests_ * sizeof(int), cudaMemcpyHostToDevice));
    double* const states[2] = {fp64_, fp64_ + requests_ * width_};
    launch(fp64::widen_rows_kernel, per_request(), x_, request_of_, states[0], width_);
    for (int m = 0; m < models; ++m) {
      const auto begin = static_cast<std::size_t>(grouped.offsets[static_cast<std::size_t>(m)]);
      const std::size_t rows = static_cast<std::size_t>(grouped.offsets[static_cast<std::size_t>(m) + 1]) - begin;
      for (int l = 0; l < layers_of[m]; ++l)
        fp64::multiply<fp64::After::relu>(launch.stream, states[l % 2] + begin * width_, layer(m, l), nullptr,
                                          states[(l + 1) % 2] + begin * width_, rows, width_, width_);
    }
    expected_.resize(requests_ * width_);
    row_of_ = grouped.row_of_slot;
    check(cudaStreamSynchronize(launch.stream));
    check(cudaMemcpy(expected_.data(), states[0], requests_ * width_ * sizeof(double), cudaMemcpyDeviceToHost));
  }
  double expected_output(int output, std::size_t i) const override {
    if (output == 0) return expected_models_[i];
    return expected_[static_cast<std::size_t>(row_of_[i / width_]) * width_ + i % width_];
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("request rate", static_cast<double>(requests_), "requests/s");
  }

  void by_mask(Launch& launch) {
    const std::vector<int> begins = groups_from_host(launch);
    for (int m = 0; m < models; ++m) run_group(launch.stream, 0, m, begins);
  }
  void host_streams(Launch& launch) {
    const std::vector<int> begins = groups_from_host(launch);
    on_streams(launch.stream, [&](int m) { run_group(streams_[m], m, m, begins); });
  }
  void tune_groups(Launch& launch) {
    for (int m = 0; m < models; ++m)
      for (const int handle : {0, m}) tune(launch, handle, rows_[m]);
  }

  void build_in_turn(Launch& launch) {
    build(launch, in_turn_, [this](cudaStream_t stream) {
      for (int m = 0; m < models; ++m) run_listed(stream, m);
    });
  }
  void build_branches(Launch& launch) {
    build(launch, branches_, [this](cudaStream_t stream) { on_streams(stream, [&](int m) { run_listed(streams_[m], m); }); });
  }
  void build_large(Launch& launch) {
    build(launch, large_, [this](cudaStream_t stream) { run_listed(stream, models - 1); });
  }
  void device_groups(Launch& launch) { in_turn_.launch(launch.stream); }
  void grouped_streams(Launch& launch) { branches_.launch(launch.stream); }
  void large_alone(Launch& launch) { large_.launch(launch.stream); }

  void run_all(Launch& launch) {
    launch(gate_kernel<float>, per_request(), x_, gate_, hints_, model_of_, width_);
    for (int m = 0; m < models; ++m) {
      bf16* const result = of_models_ + static_cast<std::size_t>(m) * requests_ * width_;
      chain(launch.stream, 0, m, requests_, x_, result, states_[0]);
    }
    launch(select_kernel, per_request(), packets(of_models_.get()), model_of_, packets(y_.get()), width_ / 8);
  }
  void tune_all(Launch& launch) { tune(launch, 0, requests_); }

 private:
  std::size_t tiles() const { return (requests_ + moe::tile_slots - 1) / moe::tile_slots; }
  std::size_t most_row_tiles() const { return requests_ / 64 + 2; }
  Cost of_layers(double row_layers, double used_layers) const {
    const auto square = static_cast<double>(width_ * width_);
    return {.flops = 2 * row_layers * square,
            .math = Math::bf16,
            .bytes = static_cast<double>(x_.bytes() + y_.bytes()) + used_layers * square * sizeof(bf16)};
  }
  // As many requests for each model as the shares say, in random order.
  void draw_hints(std::span<float> hints, std::uint64_t seed) const {
    std::vector<int> wishes;
    for (int m = 0; m < models; ++m) wishes.insert(wishes.end(), rows_[m], m);
    for (std::size_t i = wishes.size(); i > 1; --i) std::swap(wishes[i - 1], wishes[random_bits(seed, i) % i]);
    for (std::size_t i = 0; i < hints.size(); ++i) hints[i] = wishes[i / models] == static_cast<int>(i % models) ? wanted : 0;
  }
  Grid per_request() const { return {static_cast<unsigned>(requests_), threads}; }
  static const uint4* packets(const bf16* rows) { return reinterpret_cast<const uint4*>(rows); }
  static uint4* packets(bf16* rows) { return reinterpret_cast<uint4*>(rows); }
  const bf16* layer(int model, int number) const {
    return weights_ + static_cast<std::size_t>(first_layer[model] + number) * width_ * width_;
  }

  const MatmulPlan& plan(int handle, std::size_t rows) {
    std::unique_ptr<MatmulPlan>& plan = plans_[{handle, rows}];
    if (!plan)
      plan.reset(new MatmulPlan{*lts_[handle], {.m = rows, .n = width_, .k = width_, .epilogue = CUBLASLT_EPILOGUE_RELU}});
    return *plan;
  }
  void tune(Launch& launch, int handle, std::size_t rows) {
    if (rows == 0) return;
    plan(handle, rows);
    plans_[{handle, rows}]->tune(launch.stream, states_[0], weights_, states_[1]);
  }
  // All layers of a model; the result is in `result`.
  void chain(cudaStream_t stream, int handle, int model, std::size_t rows, const bf16* x, bf16* result, bf16* between) {
    if (rows == 0) return;
    const MatmulPlan& of_rows = plan(handle, rows);
    for (int l = 0; l < layers_of[model]; ++l)
      of_rows.run(stream, l == 0 ? x : l % 2 == 0 ? result : between, layer(model, l), l % 2 == 0 ? between : result);
  }

  // Models to the host, and the requests in their order back; returns where each model's begin.
  std::vector<int> groups_from_host(Launch& launch) const {
    launch(gate_kernel<float>, per_request(), x_, gate_, hints_, model_of_, width_);
    check(cudaMemcpyAsync(host_models_, model_of_, model_of_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
    const moe::Grouped grouped = moe::group_by_expert({host_models_.get(), requests_}, models);
    std::copy(grouped.slot_of_row.begin(), grouped.slot_of_row.end(), host_requests_.get());
    check(cudaMemcpyAsync(request_of_, host_requests_, request_of_.bytes(), cudaMemcpyHostToDevice, launch.stream));
    return grouped.offsets;
  }
  void run_group(cudaStream_t stream, int handle, int model, const std::vector<int>& begins) {
    const int* const of_model = begins.data() + model;
    const std::size_t begin = static_cast<std::size_t>(of_model[0]), rows = static_cast<std::size_t>(of_model[1]) - begin;
    if (rows == 0) return;
    const Grid grid{static_cast<unsigned>(rows), threads};
    const std::size_t first_packet = begin * width_ / 8;
    bf16 *const state = states_[0] + begin * width_, *const other = states_[1] + begin * width_;
    launch_kernel(stream, move_rows_kernel<false>, grid, packets(x_.get()), request_of_ + begin,
                  packets(states_[0].get()) + first_packet, width_ / 8);
    chain(stream, handle, model, rows, state, state, other);
    launch_kernel(stream, move_rows_kernel<true>, grid, packets(states_[0].get()) + first_packet, request_of_ + begin,
                  packets(y_.get()), width_ / 8);
  }
  template <class Run>
  void on_streams(cudaStream_t stream, const Run& run) const {
    check(cudaEventRecord(forked_, stream));
    for (int m = models - 1; m >= 0; --m) {
      check(cudaStreamWaitEvent(streams_[m], forked_));
      run(m);
      check(cudaEventRecord(joined_[m], streams_[m]));
      check(cudaStreamWaitEvent(stream, joined_[m]));
    }
  }

  int* ids() const { return index_; }  // of the reference
  int* ranks() const { return index_; }
  int* row_of_request() const { return index_ + requests_; }
  int* starts() const { return index_ + 2 * requests_; }
  int* offsets() const { return starts() + models * tiles(); }
  unsigned* done() const { return reinterpret_cast<unsigned*>(offsets() + models + 1); }
  gemm::RowTile* row_tiles(int model) const { return row_tiles_ + static_cast<std::size_t>(model) * most_row_tiles(); }

  void make_layers() {
    for (int m = 0; m < models; ++m)
      for (int l = 0; l < layers_of[m]; ++l) {
        const gemm::GroupedRows rows{.tiles = row_tiles(m), .count = tile_counts_ + m};
        const typename Layer<ManyRows>::Problem problem{
            .a = states_[l % 2], .b = layer(m, l), .c = states_[(l + 1) % 2], .m = requests_, .n = width_, .k = width_};
        if (m < models - 1) many_.emplace_back(problem, rows);
        else few_.emplace_back(problem, rows);
      }
  }
  // Captures gate, sort, gather, what `run_models(stream)` queues, and scatter: all of it without the host.
  template <class RunModels>
  void build(Launch& launch, Graph& graph, const RunModels& run_models) {
    check(cudaMemsetAsync(done(), 0, sizeof(unsigned), launch.stream));
    if (many_.empty()) make_layers();
    const auto work = [&](cudaStream_t stream) {
      const moe::Slots slots{model_of_, static_cast<int>(requests_), models, ranks(), starts(), offsets(), done()};
      const Grid index{static_cast<unsigned>(tiles()), moe::tile_slots};
      launch_kernel(stream, gate_kernel<float>, per_request(), x_, gate_, hints_, model_of_, width_);
      launch_kernel(stream, moe::rank_slots_kernel, index, slots);
      launch_kernel(stream, moe::place_slots_kernel, index, slots, request_of_, row_of_request());
      launch_kernel(stream, move_rows_kernel<false>, per_request(), packets(x_.get()), request_of_, packets(states_[0].get()),
                    width_ / 8);
      run_models(stream);
      launch_kernel(stream, move_rows_kernel<true>, per_request(), packets(states_[0].get()), request_of_, packets(y_.get()),
                    width_ / 8);
    };
    work(launch.stream);  // a kernel's code is loaded at its first launch: not while a capture is under way
    graph.capture(launch.stream, work);
  }
  // A model's layers on as many rows as its group has in device memory.
  void run_listed(cudaStream_t stream, int model) const {
    const bool is_large = model == models - 1;
    const int tile_rows = is_large ? FewRows::tile_m : ManyRows::tile_m;
    launch_kernel(stream, gemm::list_row_tiles_kernel<int>, {1, 32}, offsets() + model, 1, tile_rows, 8, row_tiles(model),
                  tile_counts_ + model);
    for (int l = 0; l < layers_of[model]; ++l)
      if (is_large) few_[static_cast<std::size_t>(l)].run(stream);
      else many_[static_cast<std::size_t>(first_layer[model] + l)].run(stream);
  }

  std::size_t requests_, width_;
  std::array<std::size_t, models> shares_, rows_{};
  Input<bf16> x_;
  Input<float> gate_, hints_;
  Input<bf16> weights_;  // [layers of all models][width][width]
  Output<int> model_of_;
  Output<bf16> y_;
  Scratch<bf16> states_[2], of_models_;
  Scratch<int> request_of_, index_;
  Scratch<gemm::RowTile> row_tiles_;
  Scratch<int> tile_counts_, host_models_, host_requests_;
  Scratch<double> fp64_;
  cudaStream_t streams_[models];
  cudaEvent_t forked_, joined_[models];
  Opened<CublasLt> lts_[models];  // products that run at once want a workspace each
  std::map<std::pair<int, std::size_t>, std::unique_ptr<MatmulPlan>> plans_;
  std::vector<Layer<ManyRows>> many_;
  std::vector<Layer<FewRows>> few_;
  Graph in_turn_, branches_, large_;
  std::vector<int> expected_models_, row_of_;
  std::vector<double> expected_;
};

constexpr Needs cublaslt{.libraries = {Library::cublaslt}}, hopper = Layer<ManyRows>::needs();

}  // namespace

extern constinit const Pair model_routing{
    .teaches = "groups that are routed to different models are small: run them side by side, in one graph without the host",
    .lesson = "grouped_streams",
    .make = make<ModelRouting>,
    .baseline = {.name = "by_mask",
                 .run = call<&ModelRouting::by_mask>,
                 .prepare = call<&ModelRouting::tune_groups>,
                 .needs = cublaslt},
    .optimized = variants({{.name = "device_groups",
                            .run = call<&ModelRouting::device_groups>,
                            .prepare = call<&ModelRouting::build_in_turn>,
                            .needs = hopper},
                           {.name = "grouped_streams",
                            .run = call<&ModelRouting::grouped_streams>,
                            .prepare = call<&ModelRouting::build_branches>,
                            .needs = hopper,
                            .same_bits_as = "device_groups"}}),
    .controls = variants(
        {{.name = "host_streams",
          .run = call<&ModelRouting::host_streams>,
          .prepare = call<&ModelRouting::tune_groups>,
          .needs = cublaslt},
         {.name = "run_all", .run = call<&ModelRouting::run_all>, .prepare = call<&ModelRouting::tune_all>, .needs = cublaslt},
         {.name = "large_alone",
          .run = call<&ModelRouting::large_alone>,
          .prepare = call<&ModelRouting::build_large>,
          .needs = hopper,
          .outputs = no_outputs}}),
    .bound = Bound::compute,
    // 32 roundings to bf16 one after the other: sqrt(32) of 1.6e-3.
    .tolerance = per_output({exact, within(1.5e-2)}),
    .start = Start::immediate,
    .sizes = sizes({{.name = "requests", .full = 2048, .most = 16384},
                    {.name = "width", .full = 2048, .multiple = 64, .least = 256, .most = 8192, .scales = false},
                    {.name = "small", .full = 80, .least = 0, .most = 100, .scales = false},
                    {.name = "medium", .full = 15, .least = 0, .most = 100, .scales = false}}),
    .sweep = cases({{"requests_64", "requests=64"},
                    {"requests_256", "requests=256"},
                    {"requests_2048", "requests=2048"},
                    {"requests_8192", "requests=8192"},
                    {"width_4096", "width=4096"},
                    {"shares_70_20_10", "small=70,medium=20"}}),
    .edges = cases({{"one_request", "requests=1,width=256,small=0,medium=0"},
                    {"all_small", "requests=130,width=256,small=100,medium=0"},
                    {"no_medium", "requests=300,width=256,small=60,medium=0"},
                    {"one_large", "requests=20,width=256,small=80,medium=15"}}),
};

}  // namespace aisp::ch17
