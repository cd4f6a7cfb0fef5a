// SPDX-License-Identifier: Apache-2.0
// LayerNorm of five tensors with rows of 128 to 65536 values. How many threads a row should have, and how many rows a block,
// depends on the row's width: 256 threads leave most lanes without work where a row has 16 packets of 16 bytes, and cannot hold a
// row of 65536 in registers. All instances of a template are timed once for each width, and the fastest one is kept.
#include <cuda_bf16.h>
#include <aisp/device/reduce.cuh>
#include <aisp/libraries/fastest.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

namespace aisp::ch06 {
namespace {

using bf16 = __nv_bfloat16;
using Packet = uint4;
constexpr int packet_values = 8;
constexpr int kept = 8;  // packets of a row that a thread holds in registers; it reads further ones twice
constexpr float epsilon = 1e-5f;
constexpr std::size_t most_rows_per_block = 16, most_width = 65536;

// Sums over the threads of a row, which are neighbours in the block.
template <int row_threads, int rows>
__device__ float2 row_sum(float2 value) {
  constexpr int lanes = std::min(row_threads, 32), row_warps = row_threads / lanes;
  value = make_float2(device::warp_sum<lanes>(value.x), device::warp_sum<lanes>(value.y));
  if constexpr (row_warps > 1) {
    __shared__ float2 of_warp[row_warps * rows];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) of_warp[warp] = value;
    __syncthreads();
    value = of_warp[warp / row_warps * row_warps + lane % row_warps];
    value = make_float2(device::warp_sum<row_warps>(value.x), device::warp_sum<row_warps>(value.y));
  }
  return value;
}

// bf16 is the upper half of fp32: words stay as they are until their values are used, which saves registers.
__device__ float2 unpacked(unsigned word) { return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000)); }

__device__ void add(unsigned word, float2& sums) {
  const float2 v = unpacked(word);
  sums = make_float2(sums.x + (v.x + v.y), fmaf(v.x, v.x, fmaf(v.y, v.y, sums.y)));
}
__device__ void add(const Packet& packet, float2& sums) {
  add(packet.x, sums), add(packet.y, sums), add(packet.z, sums), add(packet.w, sums);
}

struct Statistics {
  float mean, inverse;  // of the deviation
};
__device__ unsigned normalized(unsigned word, unsigned weight, unsigned bias, Statistics of) {
  const float2 v = unpacked(word), w = unpacked(weight), b = unpacked(bias);
  const __nv_bfloat162 result =
      __floats2bfloat162_rn(fmaf((v.x - of.mean) * of.inverse, w.x, b.x), fmaf((v.y - of.mean) * of.inverse, w.y, b.y));
  return reinterpret_cast<const unsigned&>(result);
}
__device__ Packet normalized(const Packet& v, const Packet& w, const Packet& b, Statistics of) {
  return make_uint4(normalized(v.x, w.x, b.x, of), normalized(v.y, w.y, b.y, of), normalized(v.z, w.z, b.z, of),
                    normalized(v.w, w.w, b.w, of));
}

template <int row_threads, int rows>
__global__ __launch_bounds__(row_threads* rows) void layer_norm_kernel(const Packet* in, const Packet* weight, const Packet* bias,
                                                                       Packet* out, unsigned packets) {
  const unsigned first = threadIdx.x % row_threads;
  const std::size_t row = (std::size_t{blockIdx.x} * rows + threadIdx.x / row_threads) * packets + first;
  in += row, out += row, weight += first, bias += first;
  const int left = static_cast<int>(packets - first);  // packets from the thread's first one on
  Packet held[kept];
#pragma unroll
  for (int k = 0; k < kept; ++k)
    if (k * row_threads < left) held[k] = in[k * row_threads];
  float2 sums{};
#pragma unroll
  for (int k = 0; k < kept; ++k)
    if (k * row_threads < left) add(held[k], sums);
  for (int i = kept * row_threads; i < left; i += row_threads) add(in[i], sums);
  sums = row_sum<row_threads, rows>(sums);
  const float share = 1.0f / static_cast<float>(packets * packet_values), mean = sums.x * share;
  const Statistics of{mean, rsqrtf(fmaxf(sums.y * share - mean * mean, 0) + epsilon)};
#pragma unroll
  for (int k = 0; k < kept; ++k)
    if (const int i = k * row_threads; i < left) out[i] = normalized(held[k], weight[i], bias[i], of);
  for (int i = kept * row_threads; i < left; i += row_threads) out[i] = normalized(in[i], weight[i], bias[i], of);
}

struct Instance {
  void (*kernel)(const Packet*, const Packet*, const Packet*, Packet*, unsigned);
  unsigned row_threads, rows;
};
template <int row_threads, int rows>
constexpr Instance of{layer_norm_kernel<row_threads, rows>, row_threads, rows};
constexpr Instance instances[] = {of<8, 8>,   of<8, 16>,  of<16, 4>,  of<16, 8>,  of<16, 16>, of<32, 2>,
                                  of<32, 4>,  of<32, 8>,  of<32, 16>, of<64, 1>,  of<64, 2>,  of<64, 4>,
                                  of<64, 8>,  of<64, 16>, of<128, 1>, of<128, 2>, of<128, 4>, of<128, 8>,
                                  of<256, 1>, of<256, 2>, of<256, 4>, of<512, 1>, of<512, 2>, of<1024, 1>};
constexpr std::size_t baseline = 18;
static_assert(instances[baseline].row_threads == 256 && instances[baseline].rows == 1);

struct Tensor {
  std::size_t width, rows;
  Input<bf16> in;
  Output<bf16> out;
  std::string name;                                // of its metrics
  std::vector<std::array<double, 2>> reference{};  // mean and inverse deviation of each row
  std::vector<float> times_ms{};                   // by instance
  std::size_t tuned = 0;                           // the fastest of them
};

class Autotuning final : public Workload {
 public:
  explicit Autotuning(Setup& setup)
      : weight_{setup.input<bf16>(most_width, uniform(0.5f, 1.5f), {.name = "weight"})},
        bias_{setup.input<bf16>(most_width, uniform(-1, 1), {.name = "bias"})},
        team_{setup.threads(setup.cpus(), false)},
        reproducible_{setup.reproducible()} {
    const std::size_t only = setup.size("width"),
                      elements = setup.scaled(std::size_t{64} << 20, most_width * most_rows_per_block);
    for (const std::size_t width : only > 0 ? std::vector{only} : std::vector<std::size_t>{128, 768, 2048, 8192, 65536}) {
      const std::size_t rows = elements / width / most_rows_per_block * most_rows_per_block;
      tensors_.push_back({width, rows, setup.input<bf16>(rows * width, normal(0.5f, 1), {.name = "values"}),
                          setup.output<bf16>(rows * width, {.name = "normalized"}), "width_" + std::to_string(width)});
    }
  }

  Cost cost() const override {
    Cost cost{};
    for (const Tensor& tensor : tensors_) {
      cost.flops += 8.0 * static_cast<double>(tensor.in.size());
      cost.bytes += static_cast<double>(tensor.in.bytes() + tensor.out.bytes());
    }
    return cost;
  }
  void compute_reference(Launch&) override {
    for (Tensor& tensor : tensors_) {
      tensor.reference.resize(tensor.rows);
      team_.run([&](int worker) {
        for (auto row = static_cast<std::size_t>(worker); row < tensor.rows; row += static_cast<std::size_t>(team_.size())) {
          double sum = 0, squares = 0;
          for (std::size_t i = row * tensor.width; i < (row + 1) * tensor.width; ++i) {
            const double x = tensor.in.host(i);
            sum += x;
            squares += x * x;
          }
          const auto count = static_cast<double>(tensor.width);
          const double mean = sum / count;
          tensor.reference[row] = {mean, 1 / std::sqrt(squares / count - mean * mean + static_cast<double>(epsilon))};
        }
      });
    }
  }
  double expected_output(int output, std::size_t i) const override {
    const Tensor& tensor = tensors_[static_cast<std::size_t>(output)];
    const auto [mean, inverse] = tensor.reference[i / tensor.width];
    return (tensor.in.host(i) - mean) * inverse * weight_.host(i % tensor.width) + bias_.host(i % tensor.width);
  }

  // Reports the search's result for each width, so that one width cannot make the result unseen.
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (search_ms_ == 0) return;
    for (const Tensor& tensor : tensors_) {
      const std::size_t used = variant == "tuned" ? tensor.tuned : variant == "best_fixed" ? best_fixed_ : baseline;
      metrics.report((tensor.name + "_time").c_str(), 1e3 * static_cast<double>(tensor.times_ms[used]), "us",
                     Metrics::Better::lower);
      metrics.report((tensor.name + "_row_threads").c_str(), instances[used].row_threads, "threads", Metrics::Better::higher);
      metrics.report((tensor.name + "_block_rows").c_str(), instances[used].rows, "rows", Metrics::Better::higher);
    }
    if (variant != "threads_256") metrics.report("search", search_ms_, "ms", Metrics::Better::lower);
  }

  void threads_256(Launch& launch) {
    for (const Tensor& tensor : tensors_) run(launch, tensor, baseline);
  }
  void best_fixed(Launch& launch) {
    for (const Tensor& tensor : tensors_) run(launch, tensor, best_fixed_);
  }
  void tuned(Launch& launch) {
    for (const Tensor& tensor : tensors_) run(launch, tensor, tensor.tuned);
  }
  void search(Launch& launch) {
    if (reproducible_) throw Unsupported("the clock would choose its instances, which --reproducible rules out");
    if (search_ms_ > 0) return;  // what suits a width does not depend on the values
    const auto start = std::chrono::steady_clock::now();
    // The baseline's is the default, which others have to beat.
    const auto instance = [](std::size_t candidate) { return (candidate + baseline) % std::size(instances); };
    for (Tensor& tensor : tensors_) {
      std::array<float, std::size(instances)> times_ms{};
      const auto run_one = [&](std::size_t i) { run(launch, tensor, instance(i)); };
      tensor.tuned = instance(fastest(launch.stream, std::size(instances), run_one, times_ms).value());
      tensor.times_ms.resize(std::size(instances));
      for (std::size_t i = 0; i < times_ms.size(); ++i) tensor.times_ms[instance(i)] = times_ms[i];
    }
    const auto run_all = [&](std::size_t i) {
      for (const Tensor& tensor : tensors_) run(launch, tensor, instance(i));
    };
    best_fixed_ = instance(fastest(launch.stream, std::size(instances), run_all).value());
    search_ms_ = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  void run(Launch& launch, const Tensor& tensor, std::size_t chosen) const {
    const Instance& instance = instances[chosen];
    const auto packets = [](const bf16* from) { return reinterpret_cast<const Packet*>(from); };
    launch(instance.kernel,
           {.blocks = static_cast<unsigned>(tensor.rows / instance.rows), .threads = instance.row_threads * instance.rows},
           packets(tensor.in), packets(weight_), packets(bias_), reinterpret_cast<Packet*>(tensor.out.get()),
           tensor.width / packet_values);
  }

  Input<bf16> weight_, bias_;
  ThreadTeam& team_;
  bool reproducible_;
  std::vector<Tensor> tensors_;
  std::size_t best_fixed_ = 0;
  double search_ms_ = 0;  // 0: not made yet
};

}  // namespace

extern constinit const Pair autotuning{
    .teaches = "the best threads per row and rows per block depend on the row width; a short search finds them",
    .lesson = "tuned",
    .make = make<Autotuning>,
    .baseline = {.name = "threads_256", .run = call<&Autotuning::threads_256>},
    .optimized = variants({{.name = "best_fixed",
                            .run = call<&Autotuning::best_fixed>,
                            .prepare = call<&Autotuning::search>,
                            .best_of = {"threads_256"}},
                           {.name = "tuned",
                            .run = call<&Autotuning::tuned>,
                            .prepare = call<&Autotuning::search>,
                            .best_of = {"threads_256", "best_fixed"}}}),
    .bound = Bound::memory,
    // One rounding to bf16 is 1.6e-3; means and deviations in fp32 are far more exact.
    .tolerance = within(4e-3),
    // 0: the five tensors; else one, with rows of this width.
    .sizes = sizes({{.name = "width", .full = 0, .multiple = 64, .most = most_width, .scales = false}}),
    .sweep = cases({{"width_64", "width=64"},
                    {"width_128", "width=128"},
                    {"width_256", "width=256"},
                    {"width_512", "width=512"},
                    {"width_1024", "width=1024"},
                    {"width_2048", "width=2048"},
                    {"width_4096", "width=4096"},
                    {"width_8192", "width=8192"},
                    {"width_16384", "width=16384"},
                    {"width_32768", "width=32768"},
                    {"width_65536", "width=65536"}}),
    .edges = cases({{"width_64", "width=64"}, {"width_192", "width=192"}}),
};

}  // namespace aisp::ch06
