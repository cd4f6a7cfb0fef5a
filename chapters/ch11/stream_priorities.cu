// SPDX-License-Identifier: Apache-2.0
// A short chain of dependent kernels is submitted while large streaming kernels run. Free SM slots go to the kernel that asked
// first, so every link of the chain waits until tens of thousands of pending blocks have run. On a stream of higher priority its
// blocks take the next free slot instead. The judge is the moment at which the chain is done, counted from the start of the
// sample; the control `alone` has the chain without bulk work, the least latency that there is. bulk_done tells what the bulk
// work loses.
#include <aisp/pair.hpp>

#include <vector>

namespace aisp::ch11 {
namespace {

constexpr int layers = 16, layer_width = 1024;
// One 16-byte access a thread: blocks are short, and few bytes are in flight, so that memory answers others soon. Blocks of both
// kinds are of one size: the slot that one leaves is what the other needs.
constexpr int threads = 1024;
constexpr int chain_blocks = layer_width / (threads / 32);  // a row per warp

constexpr std::uint32_t multiplier = 1664525, increment = 1013904223;

// More rounds make a block last longer.
__global__ __launch_bounds__(threads) void bulk_kernel(const uint4* in, uint4* out, int rounds) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * threads + threadIdx.x;
  uint4 v = in[i];
#pragma unroll 1
  for (int round = 0; round < rounds; ++round)
    v = make_uint4(v.x * multiplier + increment, v.y * multiplier + increment, v.z * multiplier + increment,
                   v.w * multiplier + increment);
  out[i] = v;
}

// Volatile, so that the compiler leaves the order of requests as it is written.
__device__ float4 request(const float* from) {
  float4 value;
  asm volatile("ld.global.cs.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(from));
  return value;
}

// One layer: out = relu(weights * in), a row a warp. All weights are requested before the first is used: beside a saturated
// memory one long wait is affordable, eight are not.
__global__ __launch_bounds__(threads) void layer_kernel(const float* weights, const float* in, float* out) {
  constexpr int parts = layer_width / 128;  // of a row, one 16-byte load per lane each
  const int row = (blockIdx.x * threads + threadIdx.x) / 32, lane = threadIdx.x % 32;
  float4 w[parts];
#pragma unroll
  for (int i = 0; i < parts; ++i) w[i] = request(weights + row * layer_width + (i * 32 + lane) * 4);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < parts; ++i) {
    const float4 x = request(in + (i * 32 + lane) * 4);
    sum += w[i].x * x.x + w[i].y * x.y + w[i].z * x.z + w[i].w * x.w;
  }
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, distance);
  if (lane == 0) out[row] = fmaxf(sum, 0);
}

class StreamPriorities final : public Workload {
 public:
  explicit StreamPriorities(Setup& setup)
      : words_{setup.scaled(std::size_t{1} << 28, threads * 4)},
        bulk_kernels_{static_cast<int>(setup.size("bulk_kernels"))},
        rounds_{static_cast<int>(setup.size("rounds"))},
        in_{setup.input<std::uint32_t>(words_, integers(0, 0xFFFFFFFF), {.name = "bulk in"})},
        weights_{setup.input<float>(std::size_t{layers} * layer_width * layer_width, normal(0, 0.0442f), {.name = "weights"})},
        request_{setup.input<float>(layer_width, uniform(0, 1), {.name = "request"})},
        out_{setup.output<std::uint32_t>(words_, {.name = "bulk out"})},
        reply_{setup.output<float>(layer_width, {.name = "reply"})},
        between_{setup.scratch<std::uint32_t>(words_)},
        hidden_{setup.scratch<float>(2 * layer_width)},
        bulk_stream_{setup.stream()},
        default_stream_{setup.stream()},
        urgent_stream_{setup.stream(0, true)},
        forked_{setup.event()},
        bulk_done_{setup.event()},
        chain_done_{setup.event()} {}

  Cost cost() const override { return {.bytes = static_cast<double>(bulk_kernels_) * (in_.bytes() + out_.bytes())}; }
  Cost variant_cost(std::string_view variant) const override {
    return variant == "alone" ? Cost{.bytes = static_cast<double>(weights_.bytes())} : cost();
  }

  void compute_reference(Launch&) override {
    expected_reply_.resize(layer_width);
    for (int i = 0; i < layer_width; ++i) expected_reply_[i] = request_.host(i);
    std::vector<double> next(layer_width);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      for (std::size_t row = 0; row < layer_width; ++row) {
        double sum = 0;
        for (std::size_t i = 0; i < layer_width; ++i)
          sum += weights_.host((layer * layer_width + row) * layer_width + i) * expected_reply_[i];
        next[row] = sum > 0 ? sum : 0;
      }
      expected_reply_.swap(next);
    }
  }

  double expected_output(int output, std::size_t index) const override {
    if (output == 1) return expected_reply_[index];
    std::uint32_t value = in_.host(index);
    for (int k = 0; k < bulk_kernels_ * rounds_; ++k) value = value * multiplier + increment;
    return value;
  }

  void default_priority(Launch& launch) { bulk_then_chain(launch, default_stream_); }
  void chain_after_bulk(Launch& launch) { bulk_then_chain(launch, bulk_stream_); }
  void high_priority(Launch& launch) { bulk_then_chain(launch, urgent_stream_); }
  void submitted_first(Launch& launch) {
    fork(launch, default_stream_);
    queue_chain(launch, default_stream_);
    queue_bulk(launch);
    join(launch);
  }
  void alone(Launch& launch) {
    fork(launch, urgent_stream_);
    queue_chain(launch, urgent_stream_);
    check(cudaStreamWaitEvent(launch.stream, chain_done_));
  }

 private:
  void bulk_then_chain(Launch& launch, cudaStream_t chain) {
    fork(launch, chain);
    queue_bulk(launch);
    queue_chain(launch, chain);
    join(launch);
  }
  void fork(Launch& launch, cudaStream_t chain) {
    check(cudaEventRecord(forked_, launch.stream));
    check(cudaStreamWaitEvent(bulk_stream_, forked_));
    check(cudaStreamWaitEvent(chain, forked_));
  }
  void join(Launch& launch) {
    check(cudaStreamWaitEvent(launch.stream, bulk_done_));
    check(cudaStreamWaitEvent(launch.stream, chain_done_));
  }

  void queue_bulk(Launch& launch) {
    const auto blocks = static_cast<unsigned>(words_ / (threads * 4));
    const auto* from = reinterpret_cast<const uint4*>(in_.get());
    for (int k = 0; k < bulk_kernels_; ++k) {
      auto* to = reinterpret_cast<uint4*>((bulk_kernels_ - k) % 2 == 1 ? out_.get() : between_.get());
      bulk_kernel<<<blocks, threads, 0, bulk_stream_>>>(from, to, rounds_);
      from = to;
    }
    check(cudaGetLastError());
    launch.mark("bulk_done", bulk_stream_);
    check(cudaEventRecord(bulk_done_, bulk_stream_));
  }

  void queue_chain(Launch& launch, cudaStream_t stream) {
    const float* from = request_;
    for (int layer = 0; layer < layers; ++layer) {
      float* to = layer == layers - 1 ? reply_.get() : hidden_.get() + layer % 2 * layer_width;
      layer_kernel<<<chain_blocks, threads, 0, stream>>>(weights_.get() + std::size_t{layer_width} * layer_width * layer, from,
                                                         to);
      from = to;
    }
    check(cudaGetLastError());
    launch.mark("chain_done", stream);
    check(cudaEventRecord(chain_done_, stream));
  }

  std::size_t words_;
  int bulk_kernels_, rounds_;
  Input<std::uint32_t> in_;
  Input<float> weights_, request_;
  Output<std::uint32_t> out_;
  Output<float> reply_;
  Scratch<std::uint32_t> between_;
  Scratch<float> hidden_;
  cudaStream_t bulk_stream_, default_stream_, urgent_stream_;
  cudaEvent_t forked_, bulk_done_, chain_done_;
  std::vector<double> expected_reply_;
};

}  // namespace

extern constinit const Pair stream_priorities{
    .teaches = "the blocks of a high-priority stream take the next free SM slot, ahead of all pending blocks",
    .lesson = "high_priority",
    .make = make<StreamPriorities>,
    .baseline = {.name = "default_priority", .run = call<&StreamPriorities::default_priority>},
    .optimized =
        variants({{.name = "high_priority", .run = call<&StreamPriorities::high_priority>, .same_bits_as = "default_priority"}}),
    .controls = variants(
        {{.name = "alone", .run = call<&StreamPriorities::alone>, .outputs = no_outputs},
         {.name = "submitted_first", .run = call<&StreamPriorities::submitted_first>, .same_bits_as = "default_priority"},
         {.name = "chain_after_bulk", .run = call<&StreamPriorities::chain_after_bulk>, .same_bits_as = "default_priority"}}),
    .bound = Bound::latency,
    .tolerance = reduction_of(layers * layer_width),
    .start = Start::immediate,
    .judged_by = "chain_done",
    .timeline = true,
    .sizes = sizes({{.name = "bulk_kernels", .full = 10, .most = 100, .scales = false},
                    {.name = "rounds", .full = 1, .most = 10000, .scales = false}}),
    .sweep = cases({{"kernels_1", "bulk_kernels=1"},
                    {"kernels_3", "bulk_kernels=3"},
                    {"kernels_10", "bulk_kernels=10"},
                    {"rounds_1", "bulk_kernels=2,rounds=1"},
                    {"rounds_100", "bulk_kernels=2,rounds=100"},
                    {"rounds_1000", "bulk_kernels=2,rounds=1000"}}),
};

}  // namespace aisp::ch11
