// SPDX-License-Identifier: Apache-2.0
// Softmax of rows whose width is known at run time only: 3584, 5120, 7168 and 8192 columns, in one run. A kernel for any width
// reads a row three times. One that keeps rows in registers is sized for the widest of them; for others some threads have
// nothing to do, and all test what is theirs. Compiled for one width, a row has as many threads as divide it, and no tests.
#include <cuda_bf16.h>
#include <aisp/device/reduce.cuh>
#include <aisp/libraries/nvrtc.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "cudnn_softmax.hpp"
#include "softmax_rows.cuh"

namespace aisp::ch14 {
namespace {

using bf16 = __nv_bfloat16;
constexpr unsigned any_width_threads = 256, shared_block_warps = 8;
constexpr std::size_t widths[] = {3584, 5120, 7168, 8192};
constexpr std::size_t columns_of_all = 3584 + 5120 + 7168 + 8192;
constexpr std::size_t most_width = 8192;

// Three passes, the second and third of which find the row in L1 or L2.
__global__ __launch_bounds__(any_width_threads) void any_width_kernel(const uint4* __restrict__ in, uint4* __restrict__ out,
                                                                      unsigned packets) {
  __shared__ float parts[device::largest_block_in_warps];
  const std::size_t row = std::size_t{blockIdx.x} * packets;
  const float lowest = __uint_as_float(0xFF800000u);
  float x[packet], maximum = lowest, sum = 0;
  for (unsigned i = threadIdx.x; i < packets; i += blockDim.x) {
    unpack(in[row + i], x);
#pragma unroll
    for (const float value : x) maximum = fmaxf(maximum, value);
  }
  const float offset = device::block_max(maximum, lowest, parts) * log2_e;
  for (unsigned i = threadIdx.x; i < packets; i += blockDim.x) {
    unpack(in[row + i], x);
#pragma unroll
    for (const float value : x) sum += device::exp2_approximate(fmaf(value, log2_e, -offset));
  }
  const float factor = 1 / device::block_sum(sum, parts);
  for (unsigned i = threadIdx.x; i < packets; i += blockDim.x) {
    unpack(in[row + i], x);
#pragma unroll
    for (float& value : x) value = device::exp2_approximate(fmaf(value, log2_e, -offset)) * factor;
    out[row + i] = pack(x);
  }
}

using Kernel = void(const uint4*, uint4*, unsigned, unsigned);

// How a row is divided: threads, and packets of 16 bytes for each.
struct Division {
  unsigned threads, each;
  constexpr unsigned block_warps() const { return threads <= warp ? shared_block_warps : (threads + warp - 1) / warp; }
  constexpr unsigned block_rows() const { return threads <= warp ? shared_block_warps * (warp / threads) : 1; }
};

// Divides a row of `packets` without a remainder. Rows that a warp can hold share it with others: in the way that leaves the
// fewest lanes idle, with at least 128 bytes of a row side by side. Longer ones have a block, and two packets a thread if that
// makes whole warps.
Division exact_division(unsigned packets) {
  constexpr unsigned most_each = 8, lanes_side_by_side = 8;
  Division best{0, 0};
  const auto busy_lanes = [](unsigned threads) { return warp / threads * threads; };
  for (unsigned each = 1; each <= most_each; ++each) {
    const unsigned threads = packets / each;
    if (packets % each != 0 || threads > warp || (each > 1 && threads < lanes_side_by_side)) continue;
    if (best.threads == 0 || busy_lanes(threads) > busy_lanes(best.threads)) best = {threads, each};
  }
  if (best.threads > 0) return best;
  for (const unsigned each : {2u, 4u, 1u})
    if (packets % (each * warp) == 0 && packets / each <= most_row_threads) return {packets / each, each};
  return {packets, 1};
}

// A kernel built for rows of up to so many packets, for any width: the next power of two.
struct Prebuilt {
  unsigned most_packets;
  Division division;
  Kernel* kernel;
};
template <unsigned threads, unsigned each>
constexpr Prebuilt prebuilt{threads * each, Division{threads, each},
                            softmax_rows_kernel<threads, each, false, Division{threads, each}.block_warps()>};
constexpr std::array powers_of_two{prebuilt<8, 1>,  prebuilt<16, 1>, prebuilt<32, 1>,  prebuilt<32, 2>,
                                   prebuilt<32, 4>, prebuilt<32, 8>, prebuilt<256, 2>, prebuilt<512, 2>};
constexpr const Prebuilt& widest = powers_of_two.back();
static_assert(widest.most_packets * packet == most_width);

struct Tensor {
  std::size_t width, rows;
  Input<bf16> in;
  Output<bf16> out;
  Division division;
  CompiledKernel<Kernel> specialized{}, with_argument{};
  unsigned packets() const { return static_cast<unsigned>(width / packet); }
};

class ShapeSpecialization final : public Workload {
 public:
  explicit ShapeSpecialization(Setup& setup) : tensors_{tensors(setup)}, nvrtc_{setup}, cudnn_{setup} {}

  Cost cost() const override {
    Cost cost;
    for (const Tensor& tensor : tensors_) {
      cost.flops += 4 * static_cast<double>(tensor.in.size());
      cost.bytes += static_cast<double>(tensor.in.bytes() + tensor.out.bytes());
      cost.special_functions += static_cast<double>(tensor.in.size());
    }
    return cost;
  }
  double expected_output(int output, std::size_t i) const override {
    const Tensor& tensor = tensors_[static_cast<std::size_t>(output)];
    const std::size_t row = i / tensor.width * tensor.width;
    double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::size_t k = row; k < row + tensor.width; ++k) maximum = std::max(maximum, tensor.in.host(k));
    for (std::size_t k = row; k < row + tensor.width; ++k) sum += std::exp(tensor.in.host(k) - maximum);
    return std::exp(tensor.in.host(i) - maximum) / sum;
  }
  // Probabilities add up to one, but for their rounding.
  void validate(std::string_view) override {
    for (const Tensor& tensor : tensors_) {
      std::vector<bf16> row(tensor.width);
      for (std::size_t i = 0; i < std::min(tensor.rows, looked_at); ++i) {
        const std::size_t which = i * tensor.rows / std::min(tensor.rows, looked_at);
        check(cudaMemcpy(row.data(), tensor.out.get() + which * tensor.width, row.size() * sizeof(bf16), cudaMemcpyDeviceToHost));
        double sum = 0;
        for (const bf16 value : row) sum += static_cast<double>(__bfloat162float(value));
        if (!(std::abs(sum - 1) < 1e-2))
          throw std::runtime_error{"row " + std::to_string(which) + " of width " + std::to_string(tensor.width) + " adds up to " +
                                   std::to_string(sum) + " instead of 1"};
      }
    }
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant != "specialized" && variant != "width_argument") return;
    double compile_ms = 0;
    for (const Tensor& tensor : tensors_)
      compile_ms += (variant == "specialized" ? tensor.specialized : tensor.with_argument).compile_ms;
    metrics.report(compile_time, compile_ms, "ms", Metrics::Better::lower);
  }

  void any_width(Launch& launch) {
    for (const Tensor& tensor : tensors_) {
      const unsigned threads = std::min((tensor.packets() + warp - 1) / warp * warp, any_width_threads);
      launch(any_width_kernel, {static_cast<unsigned>(tensor.rows), threads}, in(tensor), out(tensor), tensor.packets());
    }
  }
  void largest_width(Launch& launch) {
    for (const Tensor& tensor : tensors_) run(launch, tensor, widest.kernel, widest.division);
  }
  void next_power_of_two(Launch& launch) {
    for (const Tensor& tensor : tensors_) {
      const auto fits = [&](const Prebuilt& built) { return tensor.packets() <= built.most_packets; };
      const Prebuilt& built = *std::ranges::find_if(powers_of_two, fits);
      run(launch, tensor, built.kernel, built.division);
    }
  }
  void compile_specialized(Launch&) {
    for (Tensor& tensor : tensors_) tensor.specialized = compiled(tensor, true);
  }
  void specialized(Launch& launch) {
    for (const Tensor& tensor : tensors_) run(launch, tensor, tensor.specialized.entry, tensor.division);
  }
  void compile_with_argument(Launch&) {
    for (Tensor& tensor : tensors_) tensor.with_argument = compiled(tensor, false);
  }
  void width_argument(Launch& launch) {
    for (const Tensor& tensor : tensors_) run(launch, tensor, tensor.with_argument.entry, tensor.division);
  }
  void cudnn_softmax(Launch& launch) {
    for (const Tensor& tensor : tensors_) cudnn_->run(launch.stream, tensor.rows, tensor.width, in(tensor), out(tensor));
  }

 private:
  static constexpr std::size_t looked_at = 64;  // rows that are added up
  static constexpr std::size_t most_groups = 16384;

  static const uint4* in(const Tensor& tensor) { return reinterpret_cast<const uint4*>(tensor.in.get()); }
  static uint4* out(const Tensor& tensor) { return reinterpret_cast<uint4*>(tensor.out.get()); }

  // One width has as many bytes as the four together.
  static std::vector<Tensor> tensors(Setup& setup) {
    const std::size_t rows = setup.size("rows"), only = setup.size("width");
    std::vector<Tensor> all;
    const auto add = [&](std::size_t width, std::size_t count) {
      const Axis each_row{width, count}, columns{1, width};
      const auto some = [&] { return drawn(each_row, count / 16 + 1); };
      // Among the rows: all elements equal; rising; a large one close to the end.
      const Pattern scores = normal(0, 2)
                                 .set(1, some())
                                 .plus_steps(1, std::max<std::size_t>(width / 16, 1), all_of(columns), some())
                                 .set(60, at(columns, width - 3), some());
      all.push_back({width, count, setup.input<bf16>(width * count, scores),
                     setup.output<bf16>(width * count, {.groups = Axis{width, std::min(count, most_groups)}}),
                     exact_division(static_cast<unsigned>(width / packet))});
    };
    if (only > 0) add(only, std::max<std::size_t>(rows * columns_of_all / only, 1));
    else
      for (const std::size_t width : widths) add(width, rows);
    return all;
  }
  CompiledKernel<Kernel> compiled(const Tensor& tensor, bool exact) const {
    const Division& division = tensor.division;
    return nvrtc_->kernel<Kernel>({.name = "softmax_rows.cu",
                                   .text = "#include \"ch14/softmax_rows.cuh\"\n",
                                   .kernel = "aisp::ch14::softmax_rows_kernel<" + std::to_string(division.threads) + ", " +
                                             std::to_string(division.each) + (exact ? ", true, " : ", false, ") +
                                             std::to_string(division.block_warps()) + ">"});
  }
  static void run(Launch& launch, const Tensor& tensor, Kernel* kernel, const Division& division) {
    const std::size_t rows = division.block_rows();
    launch(kernel, {static_cast<unsigned>((tensor.rows + rows - 1) / rows), division.block_warps() * warp}, in(tensor),
           out(tensor), tensor.rows, tensor.packets());
  }

  std::vector<Tensor> tensors_;
  Opened<Nvrtc> nvrtc_;
  Opened<shared::CudnnSoftmax> cudnn_;
};

}  // namespace

extern constinit const Pair shape_specialization{
    .teaches = "threads that divide a row evenly beat those of the widest row; compiled for its width, a kernel has just these",
    .lesson = "specialized",
    .make = make<ShapeSpecialization>,
    .baseline = {.name = "any_width", .run = call<&ShapeSpecialization::any_width>},
    .optimized =
        variants({{.name = "largest_width", .run = call<&ShapeSpecialization::largest_width>, .kernels = {.local_bytes = 0}},
                  {.name = "specialized",
                   .run = call<&ShapeSpecialization::specialized>,
                   .prepare = call<&ShapeSpecialization::compile_specialized>,
                   .needs = {.libraries = {Library::nvrtc}},
                   .kernels = {.local_bytes = 0}}}),
    .controls = variants({{.name = "width_argument",
                           .run = call<&ShapeSpecialization::width_argument>,
                           .prepare = call<&ShapeSpecialization::compile_with_argument>,
                           .needs = {.libraries = {Library::nvrtc}}},
                          // The kernel that a library with an instance for each power of two would ship.
                          {.name = "next_power_of_two", .run = call<&ShapeSpecialization::next_power_of_two>}}),
    .libraries = variants({{.name = "cudnn_softmax",
                            .run = call<&ShapeSpecialization::cudnn_softmax>,
                            .needs = {.libraries = {Library::cudnn}},
                            .tolerance = shared::cudnn_softmax_rows}}),
    .bound = Bound::memory,
    // Limits for each row by itself, or for every 16384th: one rounding to bf16, which is 2e-3 where a row has one large element.
    .tolerance = within(5e-3),
    // 0: the four widths; else one.
    .sizes = sizes(
        {{.name = "rows", .full = 16384}, {.name = "width", .full = 0, .multiple = packet, .most = most_width, .scales = false}}),
    .sweep = cases({{"width_80", "width=80"},
                    {"width_112", "width=112"},
                    {"width_192", "width=192"},
                    {"width_576", "width=576"},
                    {"width_1536", "width=1536"},
                    {"width_3584", "width=3584"},
                    {"width_8192", "width=8192"}}),
    .edges = cases({{"one_row_each", "rows=1"},
                    {"one_packet", "rows=1,width=8"},
                    {"lanes_without_a_row", "rows=1,width=80"},
                    {"several_packets_a_lane", "rows=1,width=192"},
                    {"prime_number_of_lanes", "rows=1,width=184"},
                    {"threads_without_a_packet", "rows=1,width=1016"},
                    {"one_packet_a_thread", "rows=1,width=5080"}}),
    .reference_samples = 512,
};

}  // namespace aisp::ch14
