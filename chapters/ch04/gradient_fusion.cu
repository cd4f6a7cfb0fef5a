// SPDX-License-Identifier: Apache-2.0
// The gradients of GPT-2 are 148 tensors, 98 of them smaller than 10 KB. An all-reduce of so few bytes is latency alone, and a
// call for each tensor pays it 148 times. Packed into buckets the tensors need few calls, and cross the memory twice more; where
// they lie in one flat buffer, nothing is packed. Told of all tensors at once, NCCL reduces them in one kernel where they are.
// One process drives all GPUs, and samples begin when all calls are queued, so that the host's calls do not count.
#include <cuda_bf16.h>
#include <aisp/graph.hpp>
#include <aisp/libraries/nccl.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "equal_copies.cuh"
#include "gpus.hpp"

namespace aisp::ch04 {
namespace {

using bf16 = __nv_bfloat16;

constexpr unsigned threads = 256, packets_of_thread = 4, packet_elements = 16 / sizeof(bf16);
constexpr std::size_t piece_elements = std::size_t{threads} * packets_of_thread * packet_elements;
constexpr std::size_t bucket_step = 1024 / sizeof(bf16);  // the unit of bucket_kib

// Elements of a tensor, or of a bucket, within the flat buffer.
struct Range {
  std::size_t first, count;
};
// A part of one tensor, and where it is copied.
struct Piece {
  const uint4* from;
  uint4* to;
  unsigned packets;
};

// Copies a piece a block.
__global__ __launch_bounds__(threads) void copy_pieces_kernel(const Piece* __restrict__ pieces) {
  const Piece piece = pieces[blockIdx.x];
  uint4 loaded[packets_of_thread];
#pragma unroll
  for (unsigned k = 0; k < packets_of_thread; ++k)
    if (const unsigned i = k * threads + threadIdx.x; i < piece.packets) loaded[k] = piece.from[i];
#pragma unroll
  for (unsigned k = 0; k < packets_of_thread; ++k)
    if (const unsigned i = k * threads + threadIdx.x; i < piece.packets) piece.to[i] = loaded[k];
}

class GradientFusion final : public Workload {
 public:
  explicit GradientFusion(Setup& setup)
      : gpus_{setup},
        tensors_{lay_out(gpt2(setup.size("width")))},
        count_{tensors_.back().first + tensors_.back().count},
        bucket_{setup.size("bucket_kib") * bucket_step},
        pieces_{in_pieces(tensors_)},
        nccl_{setup, gpus_.ordinals(), gpus_.count()} {
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) {
      const std::string gradients = "gradients of GPU " + std::to_string(gpu), sums = "sums on GPU " + std::to_string(gpu);
      gradients_.add(setup.input<bf16>(count_, normal(0, 1), {.name = gradients.c_str(), .device = gpu}));
      sums_.add(setup.output<bf16>(count_, {.name = sums.c_str(), .device = gpu}));
      buckets_.add(setup.scratch<bf16>(count_, {.name = "packed buckets", .device = gpu}));
      filling_.add(setup.scratch<Piece>(pieces_.size(), {.name = "pieces to pack", .device = gpu}));
      emptying_.add(setup.scratch<Piece>(pieces_.size(), {.name = "pieces to unpack", .device = gpu}));
      captured_.push_back(setup.stream(gpu));
    }
  }

  Cost cost() const override {
    const double bytes = static_cast<double>(sums_[0].bytes()), gpus = gpus_.count();
    return {.bytes = 2 * bytes, .peer_bytes = 2 * bytes * (gpus - 1) / gpus};
  }
  double expected_output(int, std::size_t index) const override {
    double sum = 0;
    for (const Input<bf16>& each : gradients_) sum += each.host(index);
    return sum;
  }
  void validate(std::string_view) override { demand_equal_copies(gpus_, sums_.pointers<bf16>(), sums_[0].bytes()); }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("reduced", static_cast<double>(sums_[0].bytes()) / 1e9, "GB/s");
  }

  void call_per_tensor(Launch& launch) { reduce_each(tensors_, gradients_.pointers<const bf16>(), sums_, launch.streams); }
  void list_pieces(Launch& launch) {
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) {
      std::vector<Piece> fill, empty;
      for (const Range& piece : pieces_) {
        const auto packets = static_cast<unsigned>(piece.count / packet_elements);
        const auto packed = reinterpret_cast<uint4*>(buckets_[gpu] + piece.first);
        fill.push_back({reinterpret_cast<const uint4*>(gradients_[gpu] + piece.first), packed, packets});
        empty.push_back({packed, reinterpret_cast<uint4*>(sums_[gpu] + piece.first), packets});
      }
      check(cudaMemcpyAsync(filling_[gpu], fill.data(), filling_[gpu].bytes(), cudaMemcpyHostToDevice, launch.streams[gpu]));
      check(cudaMemcpyAsync(emptying_[gpu], empty.data(), emptying_[gpu].bytes(), cudaMemcpyHostToDevice, launch.streams[gpu]));
      check(cudaStreamSynchronize(launch.streams[gpu]));
    }
  }
  void packed_buckets(Launch& launch) {
    copy(filling_, launch.streams);
    reduce_each(buckets(), buckets_.pointers<const bf16>(), buckets_, launch.streams);
    copy(emptying_, launch.streams);
  }
  void flat_buckets(Launch& launch) { reduce_each(buckets(), gradients_.pointers<const bf16>(), sums_, launch.streams); }

  void grouped(Launch& launch) {
    nccl_->together([&] {
      for (const Range& tensor : tensors_) reduce(tensor, gradients_.pointers<const bf16>(), sums_, launch.streams);
    });
  }
  void flat_in_one_call(Launch& launch) { reduce_each({{0, count_}}, gradients_.pointers<const bf16>(), sums_, launch.streams); }

  void capture(Launch& launch) {
    call_per_tensor(launch);  // code is loaded and links are opened at the first call, not while a capture is under way
    graph_.capture(captured_[0], [this](cudaStream_t stream) {
      for (int gpu = 1; gpu < gpus_.count(); ++gpu) gpus_.order(0, stream, captured_[static_cast<std::size_t>(gpu)]);
      reduce_each(tensors_, gradients_.pointers<const bf16>(), sums_, captured_);
      for (int gpu = 1; gpu < gpus_.count(); ++gpu) gpus_.order(gpu, captured_[static_cast<std::size_t>(gpu)], stream);
    });
  }
  void captured_calls(Launch& launch) { graph_.launch(launch.stream); }

 private:
  // Returns the elements of each tensor of GPT-2 124M, whose width is 768: embeddings, weights and biases of two norms, of
  // attention and of the MLP in each of twelve layers, and a last norm.
  static std::vector<std::size_t> gpt2(std::size_t width) {
    std::vector<std::size_t> sizes{50257 * width, 1024 * width};
    for (int layer = 0; layer < 12; ++layer)
      for (const std::size_t widths : {std::size_t{1}, std::size_t{1}, 3 * width, std::size_t{3}, width, std::size_t{1},
                                       std::size_t{1}, std::size_t{1}, 4 * width, std::size_t{4}, 4 * width, std::size_t{1}})
        sizes.push_back(widths * width);
    sizes.insert(sizes.end(), {width, width});
    return sizes;
  }
  static std::vector<Range> lay_out(const std::vector<std::size_t>& sizes) {
    std::vector<Range> tensors;
    std::size_t first = 0;
    for (const std::size_t size : sizes) {
      tensors.push_back({first, size});
      first += size;
    }
    return tensors;
  }
  static std::vector<Range> in_pieces(const std::vector<Range>& tensors) {
    std::vector<Range> pieces;
    for (const Range& tensor : tensors) cut(tensor, piece_elements, pieces);
    return pieces;
  }
  static void cut(const Range& whole, std::size_t length, std::vector<Range>& parts) {
    for (std::size_t done = 0; done < whole.count; done += length)
      parts.push_back({whole.first + done, std::min(length, whole.count - done)});
  }
  std::vector<Range> buckets() const {
    std::vector<Range> result;
    cut({0, count_}, bucket_, result);
    return result;
  }

  template <class To>
  void reduce(const Range& range, const OnGpus<const bf16>& from, const Each<To>& to, Streams streams) const {
    for (int gpu = 0; gpu < gpus_.count(); ++gpu)
      nccl_->all_reduce(gpu, from.at[gpu] + range.first, to[gpu] + range.first, range.count, nccl::Type::bf16, streams[gpu]);
  }
  // Makes a call for each range. Its group has the calls of all GPUs, because one thread makes them.
  template <class To>
  void reduce_each(const std::vector<Range>& ranges, const OnGpus<const bf16>& from, const Each<To>& to, Streams streams) const {
    for (const Range& range : ranges) nccl_->together([&] { reduce(range, from, to, streams); });
  }
  void copy(const Each<Scratch<Piece>>& pieces, Streams streams) const {
    for (int gpu = 0; gpu < gpus_.count(); ++gpu)
      gpus_.launch(gpu, streams[gpu], copy_pieces_kernel, {static_cast<unsigned>(pieces_.size()), threads}, pieces[gpu].get());
  }

  Gpus gpus_;
  std::vector<Range> tensors_;
  std::size_t count_, bucket_;
  std::vector<Range> pieces_;
  Each<Input<bf16>> gradients_;
  Each<Output<bf16>> sums_;
  Each<Scratch<bf16>> buckets_;
  Each<Scratch<Piece>> filling_, emptying_;
  std::vector<cudaStream_t> captured_;
  Opened<Nccl> nccl_;
  Graph graph_;
};

}  // namespace

extern constinit const Pair gradient_fusion{
    .teaches = "an all-reduce of a small tensor is latency alone: tell NCCL of all tensors at once, or reduce one flat buffer",
    .lesson = "grouped",
    .make = make<GradientFusion>,
    .baseline = {.name = "call_per_tensor", .run = call<&GradientFusion::call_per_tensor>},
    .optimized = variants(
        {{.name = "packed_buckets", .run = call<&GradientFusion::packed_buckets>, .prepare = call<&GradientFusion::list_pieces>},
         {.name = "flat_buckets", .run = call<&GradientFusion::flat_buckets>},
         {.name = "grouped", .run = call<&GradientFusion::grouped>, .gains_over = "call_per_tensor"},
         {.name = "flat_in_one_call", .run = call<&GradientFusion::flat_in_one_call>}}),
    .controls = variants(
        {{.name = "captured_calls", .run = call<&GradientFusion::captured_calls>, .prepare = call<&GradientFusion::capture>}}),
    .bound = Bound::transfer,
    // A rounding to bf16 for each GPU but the first, 1.6e-3 of a sum of all.
    .tolerance = within(4e-3),
    .needs = {.gpus = 2, .peer_access = true, .libraries = {Library::nccl}},
    .timeline = true,
    .sizes = sizes({{.name = "width", .full = 768, .multiple = 8, .most = 1024},
                    {.name = "bucket_kib", .full = 25600, .multiple = 16, .most = 1u << 20, .scales = false}}),
    .sweep = cases({{"bucket_1m", "bucket_kib=1024"},
                    {"bucket_4m", "bucket_kib=4096"},
                    {"bucket_25m", "bucket_kib=25600"},
                    {"bucket_100m", "bucket_kib=102400"},
                    {"bucket_256m", "bucket_kib=262144"}}),
    .edges = cases({{"narrow", "width=8,bucket_kib=16"}}),
};

}  // namespace aisp::ch04
