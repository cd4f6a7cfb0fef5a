// SPDX-License-Identifier: Apache-2.0
// A deep network whose rows may leave at exits on the way, once they are sure. That saves nothing as long as the batch is
// multiplied as a whole: rows that are done have to go, so that the products of later layers have fewer rows. Moving the others
// together costs less than one layer.
#include <cuda_bf16.h>
#include <aisp/device/reduce.cuh>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "layers_reference.cuh"

namespace aisp::ch17 {
namespace {

using bf16 = __nv_bfloat16;
constexpr int exits = 4, layers_each = 6, layers = exits * layers_each;  // the last exit takes all that are left
constexpr std::size_t classes = 1000;
constexpr int threads = 256, count_threads = 1024;
constexpr float sureness = 4;  // how many times surer the rows of each exit are than those of the next

// A row's logits grow with its scale, because layers of ReLU without bias are homogeneous. So scales decide where it leaves: rows
// of one exit are four times as sure as those of the next, a class apart from the few per cent that rounding could move.
struct Batch {
  int* row_of;  // where each row of the batch stood at first
  int* exit_of;
  float* scores;  // [rows][classes]: logits over the largest of the row
  unsigned* kept;
};

__global__ __launch_bounds__(threads) void begin_kernel(const bf16* x, const float* scales, bf16* out, Batch batch, int width) {
  const std::size_t row = blockIdx.x;
  if (threadIdx.x == 0) {
    batch.row_of[row] = static_cast<int>(row);
    batch.exit_of[row] = -1;
  }
  for (int i = static_cast<int>(threadIdx.x); i < width; i += threads)
    out[row * width + i] = __float2bfloat16_rn(__bfloat162float(x[row * width + i]) * scales[row]);
}

// The largest logit is how sure a row is. A row that is sure enough, and has not left before, leaves its scores.
__global__ __launch_bounds__(threads) void exit_kernel(const float* logits, float threshold, int exit, Batch batch) {
  __shared__ float shared[device::largest_block_in_warps];
  const float* const from = logits + blockIdx.x * classes;
  float largest = -std::numeric_limits<float>::infinity();
  for (std::size_t i = threadIdx.x; i < classes; i += threads) largest = fmaxf(largest, from[i]);
  largest = device::block_max(largest, -std::numeric_limits<float>::infinity(), shared);
  const int row = batch.row_of[blockIdx.x];
  const bool leaves = batch.exit_of[row] < 0 && largest >= threshold;
  __syncthreads();
  if (threadIdx.x == 0 && batch.kept != nullptr) batch.kept[blockIdx.x] = leaves ? 0 : 1;
  if (!leaves) return;
  if (threadIdx.x == 0) batch.exit_of[row] = exit;
  for (std::size_t i = threadIdx.x; i < classes; i += threads) batch.scores[row * classes + i] = from[i] / largest;
}

// The place of each row that stays among those that stay, by one block; `left` is how many they are.
__global__ __launch_bounds__(count_threads) void count_kernel(const unsigned* kept, int rows, int* places, int* left) {
  __shared__ int of_warps[device::warp_size];
  const int lane = static_cast<int>(threadIdx.x % device::warp_size), warp = static_cast<int>(threadIdx.x / device::warp_size);
  int before = 0;
  for (int first = 0; first < rows; first += count_threads) {
    const int row = first + static_cast<int>(threadIdx.x);
    const bool stays = row < rows && kept[row] != 0;
    const unsigned votes = __ballot_sync(device::whole_warp, stays);
    if (lane == 0) of_warps[warp] = __popc(votes);
    __syncthreads();
    int through = of_warps[lane];
#pragma unroll
    for (int offset = 1; offset < device::warp_size; offset *= 2) {
      const int below = __shfl_up_sync(device::whole_warp, through, offset);
      if (lane >= offset) through += below;
    }
    const int of_earlier = __shfl_sync(device::whole_warp, through, warp) - __popc(votes);
    if (row < rows) places[row] = stays ? before + of_earlier + __popc(votes & ((1u << lane) - 1)) : -1;
    before += __shfl_sync(device::whole_warp, through, device::warp_size - 1);
    __syncthreads();
  }
  if (threadIdx.x == 0) *left = before;
}
__global__ __launch_bounds__(threads) void compact_kernel(const uint4* x, const int* places, const int* row_of, uint4* to,
                                                          int* row_of_to, int packets) {
  const int place = places[blockIdx.x];
  if (place < 0) return;
  if (threadIdx.x == 0) row_of_to[place] = row_of[blockIdx.x];
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += threads)
    to[static_cast<std::size_t>(place) * packets + i] = x[std::size_t{blockIdx.x} * packets + i];
}

// Float64: where each row leaves, from its logits at an exit, and its scores there.
__global__ __launch_bounds__(threads) void fp64_exit_kernel(const double* logits, double threshold, int exit, double* exit_of,
                                                            double* scores) {
  __shared__ double shared[device::largest_block_in_warps];
  const std::size_t row = blockIdx.x;
  double largest = -1e300;
  for (std::size_t i = threadIdx.x; i < classes; i += threads) largest = fmax(largest, logits[row * classes + i]);
  largest = device::block_max(largest, -1e300, shared);
  const bool leaves = exit_of[row] < 0 && largest >= threshold;
  __syncthreads();
  if (!leaves) return;
  if (threadIdx.x == 0) exit_of[row] = exit;
  for (std::size_t i = threadIdx.x; i < classes; i += threads) scores[row * classes + i] = logits[row * classes + i] / largest;
}
__global__ void fp64_begin_kernel(const bf16* x, const float* scales, double* out, double* exit_of, int width) {
  const std::size_t row = blockIdx.x;
  if (threadIdx.x == 0) exit_of[row] = -1;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += threads)
    out[row * width + i] = static_cast<double>(__bfloat162float(x[row * width + i]) * scales[row]);
}

class EarlyExit final : public Workload {
 public:
  explicit EarlyExit(Setup& setup)
      : rows_{setup.size("rows")},
        width_{setup.size("width")},
        x_{setup.input<bf16>(rows_ * width_, normal(0, 1), {.name = "rows"})},
        scales_{setup.input<float>(rows_, [this](std::span<float> scales, std::uint64_t seed) { draw_scales(scales, seed); },
                                   {.name = "scales of rows"})},
        weights_{setup.input<bf16>(layers * width_ * width_,
                                   normal(0, static_cast<float>(std::sqrt(2.0 / static_cast<double>(width_)))),
                                   {.name = "weights of layers", .constant = true})},
        heads_{setup.input<bf16>(exits * width_ * classes,
                                 normal(0, static_cast<float>(std::sqrt(1.0 / static_cast<double>(width_)))),
                                 {.name = "weights of exits", .constant = true})},
        exit_of_{setup.output<int>(rows_, {.name = "exits of rows"})},
        scores_{setup.output<float>(rows_ * classes, {.name = "scores"})},
        states_{setup.scratch<bf16>(rows_ * width_), setup.scratch<bf16>(rows_ * width_)},
        logits_{setup.scratch<float>(rows_ * classes)},
        row_of_{setup.scratch<int>(rows_), setup.scratch<int>(rows_)},
        places_{setup.scratch<int>(rows_)},
        kept_{setup.scratch<unsigned>(rows_)},
        left_{setup.scratch<int>(1)},
        host_left_{setup.scratch<int>(1, {.memory = Memory::pinned})},
        fp64_{setup.scratch<double>(2 * rows_ * width_ + 2 * rows_ * classes + rows_)},
        lt_{setup} {
    std::size_t staying = rows_;
    for (int exit = 0; exit < exits; ++exit) {
      constexpr std::string_view names[] = {"first", "second", "third"};
      batch_[exit] = staying;
      const std::size_t leaving = exit < exits - 1 ? rows_ * setup.size(names[exit]) / 100 : staying;
      if (leaving > staying) throw Unsupported{"more rows leave than there are: first + second + third is 100 at most"};
      leaving_[exit] = leaving;
      staying -= leaving;
    }
  }

  // The work of rows until they leave.
  Cost cost() const override {
    double row_layers = 0, row_exits = 0;
    for (int exit = 0; exit < exits; ++exit) {
      row_layers += static_cast<double>(batch_[exit] * layers_each);
      row_exits += static_cast<double>(batch_[exit]);
    }
    const auto width = static_cast<double>(width_);
    return {.flops = 2 * row_layers * width * width + 2 * row_exits * width * static_cast<double>(classes),
            .math = Math::bf16,
            .bytes = static_cast<double>(x_.bytes() + weights_.bytes() + heads_.bytes() + scores_.bytes())};
  }
  void compute_reference(Launch& launch) override {
    double* state[2] = {fp64_, fp64_ + rows_ * width_};
    double* const logits = state[1] + rows_ * width_;
    double* const scores = logits + rows_ * classes;
    double* const exit_of = scores + rows_ * classes;
    launch(fp64_begin_kernel, {static_cast<unsigned>(rows_), threads}, x_, scales_, state[0], exit_of, width_);
    for (int layer = 0; layer < layers; ++layer) {
      fp64::multiply<fp64::After::relu>(launch.stream, state[layer % 2], weights_ + layer * width_ * width_, nullptr,
                                        state[(layer + 1) % 2], rows_, width_, width_);
      if (layer % layers_each != layers_each - 1) continue;
      const int exit = layer / layers_each;
      fp64::multiply<fp64::After::nothing>(launch.stream, state[(layer + 1) % 2], heads_ + exit * width_ * classes, nullptr,
                                           logits, rows_, classes, width_);
      launch(fp64_exit_kernel, {static_cast<unsigned>(rows_), threads}, logits, static_cast<double>(threshold(exit)), exit,
             exit_of, scores);
    }
    expected_.resize(rows_ * classes + rows_);
    check(cudaMemcpyAsync(expected_.data(), scores, expected_.size() * sizeof(double), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
  }
  double expected_output(int output, std::size_t i) const override {
    return output == 0 ? expected_[rows_ * classes + i] : expected_[i];
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("row rate", static_cast<double>(rows_), "rows/s");
  }

  void full_depth(Launch& launch) { run(launch, false); }
  void compact_host(Launch& launch) { run(launch, true); }
  void tune_full(Launch& launch) { tune(launch, rows_); }
  void tune_all(Launch& launch) {
    for (const std::size_t rows : batch_) tune(launch, rows);
  }

 private:
  struct Plans {
    MatmulPlan layer, head;
  };

  // As many rows of each exit as were asked for, in random order.
  void draw_scales(std::span<float> scales, std::uint64_t seed) const {
    std::size_t row = 0;
    for (int exit = 0; exit < exits; ++exit)
      for (std::size_t i = 0; i < leaving_[exit]; ++i) scales[row++] = scale_of(exit);
    for (std::size_t i = scales.size(); i > 1; --i) std::swap(scales[i - 1], scales[random_bits(seed, i) % i]);
  }
  static float threshold(int exit) {
    // The largest of 1000 normal values is 3.2 deviations; a logit's deviation is the row's scale.
    return exit == exits - 1 ? -std::numeric_limits<float>::infinity() : 3.2f * scale_of(exit) / std::sqrt(sureness);
  }
  static float scale_of(int exit) { return std::pow(sureness, static_cast<float>(exits - 1 - exit)); }
  Batch batch(int at, bool compact) const { return {row_of_[at], exit_of_, scores_, compact ? kept_.get() : nullptr}; }

  Plans& plans(std::size_t rows) {
    std::unique_ptr<Plans>& plans = plans_[rows];
    if (!plans)
      plans.reset(new Plans{{*lt_, {.m = rows, .n = width_, .k = width_, .epilogue = CUBLASLT_EPILOGUE_RELU}},
                            {*lt_, {.m = rows, .n = classes, .k = width_, .result = CUDA_R_32F}}});
    return *plans;
  }
  void tune(Launch& launch, std::size_t rows) {
    if (rows == 0) return;
    plans(rows).layer.tune(launch.stream, states_[0], weights_, states_[1]);
    plans(rows).head.tune(launch.stream, states_[0], heads_, logits_);
  }

  void run(Launch& launch, bool compact) {
    std::size_t rows = rows_;
    int state = 0, map = 0;
    launch(begin_kernel, {static_cast<unsigned>(rows), threads}, x_, scales_, states_[0], batch(0, compact), width_);
    for (int exit = 0; exit < exits && rows > 0; ++exit) {
      const Plans& of_rows = plans(rows);
      for (int layer = exit * layers_each; layer < (exit + 1) * layers_each; ++layer, state ^= 1)
        of_rows.layer.run(launch.stream, states_[state], weights_ + layer * width_ * width_, states_[state ^ 1]);
      of_rows.head.run(launch.stream, states_[state], heads_ + exit * width_ * classes, logits_);
      launch(exit_kernel, {static_cast<unsigned>(rows), threads}, logits_, threshold(exit), exit, batch(map, compact));
      if (!compact || exit == exits - 1) continue;
      launch(count_kernel, {1, count_threads}, kept_, rows, places_, left_);
      launch(compact_kernel, {static_cast<unsigned>(rows), threads}, reinterpret_cast<const uint4*>(states_[state].get()),
             places_, row_of_[map], reinterpret_cast<uint4*>(states_[state ^ 1].get()), row_of_[map ^ 1], width_ / 8);
      check(cudaMemcpyAsync(host_left_, left_, sizeof(int), cudaMemcpyDeviceToHost, launch.stream));
      check(cudaStreamSynchronize(launch.stream));
      rows = static_cast<std::size_t>(*host_left_);
      state ^= 1;
      map ^= 1;
    }
  }

  std::size_t rows_, width_;
  std::size_t batch_[exits] = {}, leaving_[exits] = {};  // rows that come to an exit, and those that leave there
  Input<bf16> x_;
  Input<float> scales_;
  Input<bf16> weights_, heads_;  // [layers][width][width], [exits][width][classes]
  Output<int> exit_of_;
  Output<float> scores_;
  Scratch<bf16> states_[2];
  Scratch<float> logits_;
  Scratch<int> row_of_[2], places_;
  Scratch<unsigned> kept_;
  Scratch<int> left_, host_left_;
  Scratch<double> fp64_;
  Opened<CublasLt> lt_;
  std::map<std::size_t, std::unique_ptr<Plans>> plans_;
  std::vector<double> expected_;
};

}  // namespace

extern constinit const Pair early_exit{
    .teaches =
        "early exit saves time only if rows that are done leave the batch; moving the others together costs less than a layer",
    .lesson = "compact_host",
    .make = make<EarlyExit>,
    .baseline = {.name = "full_depth", .run = call<&EarlyExit::full_depth>, .prepare = call<&EarlyExit::tune_full>},
    .optimized =
        variants({{.name = "compact_host", .run = call<&EarlyExit::compact_host>, .prepare = call<&EarlyExit::tune_all>}}),
    .bound = Bound::compute,
    // 25 roundings to bf16 one after the other: sqrt(25) of 1.6e-3.
    .tolerance = per_output({exact, within(1.5e-2)}),
    .needs = {.libraries = {Library::cublaslt}},
    .start = Start::immediate,
    .sizes = sizes({{.name = "rows", .full = 4096, .most = 16384},
                    {.name = "width", .full = 4096, .multiple = 64, .least = 2048, .most = 8192, .scales = false},
                    {.name = "first", .full = 40, .least = 0, .most = 100, .scales = false},
                    {.name = "second", .full = 25, .least = 0, .most = 100, .scales = false},
                    {.name = "third", .full = 15, .least = 0, .most = 100, .scales = false}}),
    .sweep = cases({{"rows_128", "rows=128"},
                    {"rows_512", "rows=512"},
                    {"rows_4096", "rows=4096"},
                    {"nobody_leaves", "first=0,second=0,third=0"},
                    {"half_leave_first", "first=50,second=0,third=0"},
                    {"most_leave_first", "first=90,second=0,third=0"}}),
    .edges = cases({{"one_row", "rows=1,width=2048"},
                    {"all_leave_first", "rows=77,width=2048,first=100,second=0,third=0"},
                    {"nobody_leaves", "rows=77,width=2048,first=0,second=0,third=0"},
                    {"nobody_leaves_second", "rows=1100,width=2048,second=0"}}),
};

}  // namespace aisp::ch17
