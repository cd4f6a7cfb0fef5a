// SPDX-License-Identifier: Apache-2.0
// Sixty-four stages, each of which selects rows of a table and normalizes them. A graph is built before anybody knows how many
// rows that will be, so its kernels are launched for all of them, and blocks without a row start and end for nothing. The
// selecting kernel can set the grid of the next node itself, when that node is updatable from the device; or the next kernel has
// a fixed grid, whose blocks loop.
#include <cuda_bf16.h>
#include <aisp/device/reduce.cuh>
#include <aisp/device_runtime.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace aisp::ch12 {
namespace {

constexpr unsigned stages = 64;
constexpr unsigned width = 1024, threads = 128;  // a row; a block for it, eight values a thread
constexpr unsigned select_threads = 1024;
constexpr unsigned looping_blocks = 1056;  // eight for each SM of an H100
constexpr float epsilon = 1e-5f;
// How many rows a stage selects, in terms of the mean, which they have together.
constexpr double shares[] = {0.033, 0.1, 0.3, 0.6, 1, 1.4, 1.27, 3.3};

// Rows for which score * (2 * stage + 1), modulo 2^32, is below this.
struct Stage {
  const std::uint32_t* scores;
  unsigned rows, odd;
  std::uint64_t below;
  unsigned* list;   // of the rows selected, in no order
  unsigned* count;  // zero before
  unsigned* blocks_done;
};
AISP_HOST_DEVICE inline bool selects(std::uint32_t score, unsigned odd, std::uint64_t below) { return score * odd < below; }

// `next` is the node whose grid is set to the number of rows; none: nothing is set.
template <bool sets_grid>
__global__ __launch_bounds__(select_threads) void select_kernel(Stage s, cudaGraphDeviceNode_t next) {
  __shared__ unsigned in_block, first;
  if (threadIdx.x == 0) in_block = 0;
  __syncthreads();
  const unsigned row = blockIdx.x * select_threads + threadIdx.x, lane = device::lane_index();
  const bool selected = row < s.rows && selects(s.scores[row], s.odd, s.below);
  const unsigned mine = __ballot_sync(device::whole_warp, selected);
  unsigned place = 0;
  if (lane == 0 && mine != 0) place = atomicAdd(&in_block, __popc(mine));
  place = __shfl_sync(device::whole_warp, place, 0) + __popc(mine & ((1u << lane) - 1));
  __syncthreads();
  if (threadIdx.x == 0 && in_block > 0) first = atomicAdd(s.count, in_block);
  __syncthreads();
  if (selected) s.list[first + place] = row;
  if constexpr (sets_grid) {
    if (threadIdx.x != 0) return;
    __threadfence();
    if (atomicAdd(s.blocks_done, 1) != gridDim.x - 1) return;
    const unsigned count = *static_cast<volatile unsigned*>(s.count);
    cudaGraphKernelNodeSetEnabled(next, count > 0);
    if (count > 0) cudaGraphKernelNodeSetGridDim(next, dim3{count});
  }
}

// x / root mean square, by one block.
__device__ void normalize_row(uint4* row, float* sums) {
  uint4 packet = row[threadIdx.x];
  __nv_bfloat162* const values = reinterpret_cast<__nv_bfloat162*>(&packet);
  float squares = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float2 v = __bfloat1622float2(values[k]);
    squares = fmaf(v.x, v.x, fmaf(v.y, v.y, squares));
  }
  const float scale = rsqrtf(device::block_sum(squares, sums) / width + epsilon);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float2 v = __bfloat1622float2(values[k]);
    values[k] = __floats2bfloat162_rn(v.x * scale, v.y * scale);
  }
  row[threadIdx.x] = packet;
}

__global__ __launch_bounds__(threads) void row_per_block_kernel(uint4* table, const unsigned* list, const unsigned* count) {
  __shared__ float sums[device::largest_block_in_warps];
  if (blockIdx.x < *count) normalize_row(table + std::size_t{list[blockIdx.x]} * threads, sums);
}
__global__ __launch_bounds__(threads) void looping_kernel(uint4* table, const unsigned* list, const unsigned* count) {
  __shared__ float sums[device::largest_block_in_warps];
  for (unsigned i = blockIdx.x, end = *count; i < end; i += gridDim.x)
    normalize_row(table + std::size_t{list[i]} * threads, sums);
}

class DeviceNodeUpdate final : public Workload {
 public:
  explicit DeviceNodeUpdate(Setup& setup)
      : rows_{setup.size("rows")},
        permille_{setup.size("permille")},
        scores_{setup.input<std::uint32_t>(rows_, integers(0, 0xFFFFFFFF), {.name = "scores", .constant = true})},
        table_{setup.inout<__nv_bfloat16>(rows_ * width, normal(0, 2), {.name = "table"})},
        counts_{setup.output<unsigned>(stages, {.name = "rows selected"})},
        lists_{setup.scratch<unsigned>(rows_ * stages, {.name = "lists of rows"})},
        blocks_done_{setup.scratch<unsigned>(stages)},
        answer_{setup.scratch<unsigned>(1, {.memory = Memory::pinned})} {}
  ~DeviceNodeUpdate() override {
    for (const cudaGraphExec_t executable : executables_)
      if (executable != nullptr) cudaGraphExecDestroy(executable);
    for (const cudaGraph_t graph : graphs_)
      if (graph != nullptr) cudaGraphDestroy(graph);
  }

  Cost cost() const override {
    double selected = 0;
    for (unsigned stage = 0; stage < stages; ++stage) selected += counted(stage);
    return {.bytes = selected * width * sizeof(__nv_bfloat16) * 2, .dependent_kernels = 2 * stages};
  }
  void compute_reference(Launch&) override {
    in_stages_.assign(stages, 0);
    for (unsigned stage = 0; stage < stages; ++stage) in_stages_[stage] = counted(stage);
  }
  // A row is normalized by each stage that selects it.
  double expected_output(int output, std::size_t i) const override {
    if (output == 1) return in_stages_[i];
    const std::size_t row = i / width;
    std::array<double, width> values;
    for (std::size_t k = 0; k < width; ++k) values[k] = table_.initial(row * width + k);
    for (unsigned stage = 0; stage < stages; ++stage) {
      if (!selects(scores_.host(row), 2 * stage + 1, below(stage))) continue;
      double squares = 0;
      for (const double value : values) squares += value * value;
      const double scale = 1 / std::sqrt(squares / width + double{epsilon});
      for (double& value : values) value = static_cast<double>(__bfloat162float(__double2bfloat16(value * scale)));
    }
    return values[i % width];
  }
  void validate(std::string_view) override {
    std::vector<unsigned> list(rows_);
    for (const unsigned stage : {0u, stages / 2, stages - 1}) {
      check(cudaMemcpy(list.data(), lists_ + stage * rows_, rows_ * sizeof(unsigned), cudaMemcpyDeviceToHost));
      const auto end = list.begin() + in_stages_[stage];
      std::sort(list.begin(), end);
      if (std::adjacent_find(list.begin(), end) != end ||
          !std::all_of(list.begin(), end, [&](unsigned row) { return selects(scores_.host(row), 2 * stage + 1, below(stage)); }))
        throw std::runtime_error{"the list of rows of stage " + std::to_string(stage) + " is not what the stage selects"};
    }
  }

  void host_count(Launch& launch) {
    start(launch);
    for (unsigned stage = 0; stage < stages; ++stage) {
      launch(select_kernel<false>, {select_blocks(), select_threads}, described(stage), nullptr);
      check(cudaMemcpyAsync(answer_, counts_ + stage, sizeof(unsigned), cudaMemcpyDeviceToHost, launch.stream));
      check(cudaStreamSynchronize(launch.stream));
      if (*answer_ > 0) launch(row_per_block_kernel, {*answer_, threads}, table(), lists_ + stage * rows_, counts_ + stage);
    }
  }

  enum Kind { worst, updated, looping, exact_counts, kinds };
  template <Kind kind>
  void build(Launch& launch) {
    if (executables_[kind] != nullptr) check(cudaGraphExecDestroy(executables_[kind]));
    if (graphs_[kind] != nullptr) check(cudaGraphDestroy(graphs_[kind]));
    executables_[kind] = nullptr;
    check(cudaGraphCreate(&graphs_[kind], 0));
    const cudaGraph_t graph = graphs_[kind];
    cudaGraphNode_t last = nullptr;
    for (unsigned stage = 0; stage < stages; ++stage) {
      const auto blocks = kind == looping ? looping_blocks : kind == exact_counts ? counted(stage) : static_cast<unsigned>(rows_);
      const cudaGraphNode_t normalizes =
          add_kernel(graph, std::max(blocks, 1u), threads, kind == looping ? looping_kernel : row_per_block_kernel, table(),
                     lists_ + stage * rows_, counts_ + stage);
      cudaGraphDeviceNode_t updatable = nullptr;
      if constexpr (kind == updated) {
        cudaLaunchAttributeValue value{};
        value.deviceUpdatableKernelNode.deviceUpdatable = 1;
        check(cudaGraphKernelNodeSetAttribute(normalizes, cudaLaunchAttributeDeviceUpdatableKernelNode, &value));
        check(cudaGraphKernelNodeGetAttribute(normalizes, cudaLaunchAttributeDeviceUpdatableKernelNode, &value));
        updatable = value.deviceUpdatableKernelNode.devNode;
      }
      const cudaGraphNode_t selects =
          add_kernel(graph, select_blocks(), select_threads, select_kernel<kind == updated>, described(stage), updatable);
      if (last != nullptr) check(cudaGraphAddDependencies(graph, &last, &selects, nullptr, 1));
      check(cudaGraphAddDependencies(graph, &selects, &normalizes, nullptr, 1));
      last = normalizes;
    }
    check(cudaGraphInstantiate(&executables_[kind], graph, 0));
    check(cudaGraphUpload(executables_[kind], launch.stream));
  }
  template <Kind kind>
  void run(Launch& launch) {
    start(launch);
    check(cudaGraphLaunch(executables_[kind], launch.stream));
  }

  void metrics(std::string_view, Metrics& metrics) override { metrics.report_rate("rate", stages, "stages/s"); }

 private:
  double share(unsigned stage) const {
    const double mean = static_cast<double>(permille_) / 1000;
    return permille_ == 1000 ? 1 : std::min(1.0, mean * shares[stage * 5 % std::size(shares)]);
  }
  std::uint64_t below(unsigned stage) const { return static_cast<std::uint64_t>(share(stage) * 0x1p32); }
  unsigned counted(unsigned stage) const {
    unsigned count = 0;
    for (std::size_t row = 0; row < rows_; ++row) count += selects(scores_.host(row), 2 * stage + 1, below(stage));
    return count;
  }
  Stage described(unsigned stage) const {
    return {scores_,         static_cast<unsigned>(rows_), 2 * stage + 1, below(stage), lists_ + stage * rows_,
            counts_ + stage, blocks_done_ + stage};
  }
  unsigned select_blocks() const { return static_cast<unsigned>((rows_ + select_threads - 1) / select_threads); }
  uint4* table() const { return reinterpret_cast<uint4*>(table_.get()); }
  void start(Launch& launch) const {
    check(cudaMemsetAsync(counts_, 0, counts_.bytes(), launch.stream));
    check(cudaMemsetAsync(blocks_done_, 0, blocks_done_.bytes(), launch.stream));
  }
  template <class... Parameters, class... Arguments>
  static cudaGraphNode_t add_kernel(cudaGraph_t graph, unsigned blocks, unsigned block_threads, void (*kernel)(Parameters...),
                                    Arguments... arguments) {
    std::tuple<Parameters...> values{arguments...};
    return std::apply(
        [&](auto&... value) {
          void* pointers[] = {static_cast<void*>(&value)...};
          cudaKernelNodeParams node{};
          node.func = reinterpret_cast<void*>(kernel);
          node.gridDim = dim3{blocks};
          node.blockDim = dim3{block_threads};
          node.kernelParams = pointers;
          cudaGraphNode_t added = nullptr;
          check(cudaGraphAddKernelNode(&added, graph, nullptr, 0, &node));
          return added;
        },
        values);
  }

  std::size_t rows_, permille_;
  Input<std::uint32_t> scores_;
  InOut<__nv_bfloat16> table_;
  Output<unsigned> counts_;
  Scratch<unsigned> lists_, blocks_done_;
  Scratch<unsigned> answer_;
  cudaGraph_t graphs_[kinds] = {};
  cudaGraphExec_t executables_[kinds] = {};
  std::vector<unsigned> in_stages_;
};

}  // namespace

extern constinit const Pair device_node_update{
    .teaches = "a graph whose node gets its grid from the kernel before it launches no blocks for work that is not there",
    .lesson = "device_set_grid",
    .make = make<DeviceNodeUpdate>,
    .baseline = {.name = "worst_case",
                 .run = call<&DeviceNodeUpdate::run<DeviceNodeUpdate::worst>>,
                 .prepare = call<&DeviceNodeUpdate::build<DeviceNodeUpdate::worst>>},
    .optimized = variants({{.name = "host_count", .run = call<&DeviceNodeUpdate::host_count>},
                           {.name = "device_set_grid",
                            .run = call<&DeviceNodeUpdate::run<DeviceNodeUpdate::updated>>,
                            .prepare = call<&DeviceNodeUpdate::build<DeviceNodeUpdate::updated>>,
                            .needs = {.driver = 12040}}}),
    // The plain cure, blocks that loop over what the device counted, and the counts known before: what the update costs.
    .controls = variants({{.name = "fixed_grid_stride",
                           .run = call<&DeviceNodeUpdate::run<DeviceNodeUpdate::looping>>,
                           .prepare = call<&DeviceNodeUpdate::build<DeviceNodeUpdate::looping>>},
                          {.name = "exact_grids",
                           .run = call<&DeviceNodeUpdate::run<DeviceNodeUpdate::exact_counts>>,
                           .prepare = call<&DeviceNodeUpdate::build<DeviceNodeUpdate::exact_counts>>}}),
    .bound = Bound::latency,
    // A sum in fp32 may round a value to the neighbour of what float64 makes of it.
    .tolerance = per_output({within_steps(1, 0.01), exact}),
    .start = Start::immediate,
    .sizes = sizes({{.name = "rows", .full = 1 << 18, .most = 1 << 18},
                    {.name = "permille", .full = 30, .least = 0, .most = 1000, .scales = false}}),
    .sweep = cases({{"rows_01_percent", "permille=1"},
                    {"rows_1_percent", "permille=10"},
                    {"rows_3_percent", "permille=30"},
                    {"rows_10_percent", "permille=100"},
                    {"rows_50_percent", "permille=500"},
                    {"rows_100_percent", "permille=1000"}}),
    .edges = cases({{"none", "rows=2000,permille=0"}, {"all", "rows=2000,permille=1000"}, {"one_row", "rows=1,permille=500"}}),
};

}  // namespace aisp::ch12
