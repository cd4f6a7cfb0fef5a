// SPDX-License-Identifier: Apache-2.0
// Clipping by the global norm, and AdamW, on the 148 tensors of GPT-2 124M. Written as a loop over tensors, norm and scaling are
// 296 launches. As two launches over a table of tensors they still read and write all gradients once more than the update needs.
// The factor is one number: where the last block of the norm leaves it in memory, the update applies it to what it reads anyway.
#include <cuda_bf16.h>
#include <aisp/device_attribute.hpp>
#include <aisp/graph.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gpt2_tensors.hpp"
#include "rows.cuh"

namespace aisp::ch13 {
namespace {

using shared::bf16;

constexpr float learning_rate = 1e-3f, beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f, weight_decay = 0.1f;
constexpr int step = 10;  // of the training run: the bias corrections depend on it

constexpr unsigned threads = 512, quads_of_thread = 4;
constexpr unsigned chunk_elements = threads * quads_of_thread * 4;
constexpr unsigned most_norm_blocks = 1024;

// A piece of one tensor, from an element that is a multiple of four in the buffers of all tensors.
struct Chunk {
  std::uint32_t first, count;
};

// Values that all tensors share, on the device.
struct Clip {
  float factor;
  unsigned skip;  // a gradient is no number, or infinite: this step changes nothing
  unsigned blocks_done;
};

// The decision about a step, and the norm that a training script logs: 0 where it is not finite.
struct Decision {
  Clip* clip;
  float* norm;
  float limit;
};

struct Corrections {
  float step_size;      // learning rate / (1 - beta1^step)
  float inverse_root2;  // 1 / sqrt(1 - beta2^step)
};

// Four neighbours of a chunk: those beyond its end are 0 and are not stored.
__device__ __forceinline__ float4 load_quad(const float* from, unsigned left) {
  if (left >= 4) return *reinterpret_cast<const float4*>(from);
  return make_float4(from[0], left > 1 ? from[1] : 0, left > 2 ? from[2] : 0, 0);
}
__device__ __forceinline__ float4 load_quad(const bf16* from, unsigned left) {
  if (left < 4)
    return make_float4(__bfloat162float(from[0]), left > 1 ? __bfloat162float(from[1]) : 0,
                       left > 2 ? __bfloat162float(from[2]) : 0, 0);
  const uint2 words = *reinterpret_cast<const uint2*>(from);
  return make_float4(__uint_as_float(words.x << 16), __uint_as_float(words.x & 0xFFFF0000u), __uint_as_float(words.y << 16),
                     __uint_as_float(words.y & 0xFFFF0000u));
}
__device__ __forceinline__ void store_quad(float* to, const float4& x, unsigned left) {
  if (left >= 4) *reinterpret_cast<float4*>(to) = x;
  else {
    to[0] = x.x;
    if (left > 1) to[1] = x.y;
    if (left > 2) to[2] = x.z;
  }
}
__device__ __forceinline__ void store_quad(bf16* to, const float4& x, unsigned left) {
  if (left >= 4) {
    *reinterpret_cast<uint2*>(to) = make_uint2(device::narrow_bf16(x.x, x.y), device::narrow_bf16(x.z, x.w));
  } else {
    to[0] = __float2bfloat16_rn(x.x);
    if (left > 1) to[1] = __float2bfloat16_rn(x.y);
    if (left > 2) to[2] = __float2bfloat16_rn(x.z);
  }
}

// Calls use(element, left) for the quads of a chunk that are this thread's.
template <class Use>
__device__ __forceinline__ void for_quads(const Chunk& chunk, Use use) {
#pragma unroll
  for (unsigned k = 0; k < quads_of_thread; ++k) {
    const unsigned in_chunk = (k * threads + threadIdx.x) * 4;
    if (in_chunk < chunk.count) use(chunk.first + in_chunk, chunk.count - in_chunk);
  }
}

__device__ __forceinline__ void decide(const Decision& decision, float sum_of_squares) {
  const float norm = sqrtf(sum_of_squares);
  const bool skip = !isfinite(norm);
  *decision.norm = skip ? 0 : norm;
  decision.clip->skip = skip;
  decision.clip->factor = norm > decision.limit ? decision.limit / norm : 1;
}

// The sum of squares of some chunks. The last block adds up those of all blocks, always in the same order, and leaves the sum in
// *sum, or, where there is none to leave it in, decides about the step.
__global__ __launch_bounds__(threads) void norm_kernel(const Chunk* chunks, unsigned count, const bf16* gradients, float* partial,
                                                       float* sum, Decision decision) {
  __shared__ float parts[threads / 32];
  __shared__ bool is_last;
  float own = 0;
  for (unsigned c = blockIdx.x; c < count; c += gridDim.x)
    for_quads(chunks[c], [&](unsigned i, unsigned left) {
      const float4 g = load_quad(gradients + i, left);
      own += (g.x * g.x + g.y * g.y) + (g.z * g.z + g.w * g.w);
    });
  own = device::block_sum(own, parts);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = own;
    __threadfence();
    is_last = atomicAdd(&decision.clip->blocks_done, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  own = 0;
  for (unsigned b = threadIdx.x; b < gridDim.x; b += threads) own += __ldcg(partial + b);
  own = device::block_sum(own, parts);
  if (threadIdx.x != 0) return;
  decision.clip->blocks_done = 0;
  if (sum != nullptr) *sum = own;
  else decide(decision, own);
}

// One block: the norm of the tensors' norms.
__global__ __launch_bounds__(threads) void total_kernel(const float* sums, unsigned count, Decision decision) {
  __shared__ float parts[threads / 32];
  float own = 0;
  for (unsigned t = threadIdx.x; t < count; t += threads) own += sums[t];
  own = device::block_sum(own, parts);
  if (threadIdx.x == 0) decide(decision, own);
}

__global__ __launch_bounds__(threads) void scale_kernel(const Chunk* chunks, bf16* gradients, const Clip* clip) {
  if (clip->skip != 0) return;
  const float factor = clip->factor;
  for_quads(chunks[blockIdx.x], [&](unsigned i, unsigned left) {
    const float4 g = load_quad(gradients + i, left);
    store_quad(gradients + i, make_float4(g.x * factor, g.y * factor, g.z * factor, g.w * factor), left);
  });
}

struct State {
  float *weights, *firsts, *seconds;
  bf16* working;  // the weights that the model computes with
};

__device__ __forceinline__ void adamw(float gradient, float& weight, float& first, float& second, Corrections corrections) {
  first = beta1 * first + (1 - beta1) * gradient;
  second = beta2 * second + (1 - beta2) * gradient * gradient;
  const float update = corrections.step_size * first / (sqrtf(second) * corrections.inverse_root2 + epsilon);
  weight -= learning_rate * weight_decay * weight + update;
}

enum class Factor { none, at_read };

template <Factor applied>
__global__ __launch_bounds__(threads) void adamw_kernel(const Chunk* chunks, const bf16* gradients, State state, const Clip* clip,
                                                        Corrections corrections) {
  const bool skip = clip != nullptr && clip->skip != 0;
  const float factor = applied == Factor::at_read ? clip->factor : 1;
  for_quads(chunks[blockIdx.x], [&](unsigned i, unsigned left) {
    const float4 gradient = load_quad(gradients + i, left);
    float4 weight = load_quad(state.weights + i, left);
    if (!skip) {
      float4 first = load_quad(state.firsts + i, left), second = load_quad(state.seconds + i, left);
      adamw(gradient.x * factor, weight.x, first.x, second.x, corrections);
      adamw(gradient.y * factor, weight.y, first.y, second.y, corrections);
      adamw(gradient.z * factor, weight.z, first.z, second.z, corrections);
      adamw(gradient.w * factor, weight.w, first.w, second.w, corrections);
      store_quad(state.weights + i, weight, left);
      store_quad(state.firsts + i, first, left);
      store_quad(state.seconds + i, second, left);
    }
    store_quad(state.working + i, weight, left);
  });
}

class GradientClipping final : public Workload {
 public:
  explicit GradientClipping(Setup& setup)
      : tensors_{lay_out(setup.size("tensors"), setup.size("elements"), chunk_elements)},
        count_{tensors_.back().end()},
        chunk_count_{tensors_.back().first_chunk + tensors_.back().chunks},
        is_below_{setup.size("below_limit") != 0},
        overflows_{setup.size("overflow") != 0},
        // Constant, because what is scaled in place is copied from them before each run.
        gradients_{setup.input<bf16>(count_, gradients(), {.name = "gradients", .constant = true})},
        norm_{setup.output<float>(1, {.name = "norm"})},
        weights_{setup.inout<float>(count_, normal(0, 0.02f), {.name = "weights"})},
        firsts_{setup.inout<float>(count_, normal(0, 2e-4f), {.name = "first moments"})},
        seconds_{setup.inout<float>(count_, uniform(1e-8f, 1e-7f), {.name = "second moments"})},
        working_{setup.inout<bf16>(count_, constant(0), {.name = "weights in bf16"})},
        scaled_{setup.scratch<bf16>(count_, {.name = "gradients scaled in place"})},
        chunks_{setup.scratch<Chunk>(chunk_count_, {.name = "table of chunks"})},
        sums_{setup.scratch<float>(tensors_.size(), {.name = "sums of squares"})},
        partial_{setup.scratch<float>(most_norm_blocks, {.name = "sums of squares of blocks"})},
        clip_{setup.scratch<Clip>(1, {.name = "clip factor"})},
        team_{setup.threads(setup.cpus(), false)} {}

  // All gradients for the norm, and then what the update reads and writes.
  Cost cost() const override {
    const auto parameters = static_cast<double>(count_);
    return {.flops = 20 * parameters, .bytes = parameters * (2 + 2 + 24 + 2)};
  }
  void compute_reference(Launch&) override {
    if (overflows_) return;
    std::vector<double> sums(static_cast<std::size_t>(team_.size()));
    team_.run([&](int worker) {
      double sum = 0;
      for (const Tensor& tensor : tensors_)
        for (std::size_t i = static_cast<std::size_t>(worker); i < tensor.count; i += sums.size()) {
          const double gradient = gradients_.host(tensor.first + i);
          sum += gradient * gradient;
        }
      sums[static_cast<std::size_t>(worker)] = sum;
    });
    double sum = 0;
    for (const double part : sums) sum += part;
    expected_norm_ = std::sqrt(sum);
    factor_ = std::min(1.0, double{limit()} / expected_norm_);
  }
  double expected_output(int output, std::size_t i) const override {
    if (output == 0) return overflows_ ? 0 : expected_norm_;
    double weight = weights_.initial(i), first = firsts_.initial(i), second = seconds_.initial(i);
    if (is_gap(i)) return output == 1 ? weight : output == 2 ? first : output == 3 ? second : 0;
    if (!overflows_) {
      const double gradient = gradients_.host(i) * factor_;
      first = double{beta1} * first + (1 - double{beta1}) * gradient;
      second = double{beta2} * second + (1 - double{beta2}) * gradient * gradient;
      const double update = first / (1 - std::pow(double{beta1}, step)) /
                            (std::sqrt(second / (1 - std::pow(double{beta2}, step))) + double{epsilon});
      weight -= double{learning_rate} * (double{weight_decay} * weight + update);
    }
    return output == 2 ? first : output == 3 ? second : weight;
  }

  void prepare_table(Launch& launch) {
    table_.clear();
    for (const Tensor& tensor : tensors_)
      for (std::size_t done = 0; done < tensor.count; done += chunk_elements)
        table_.push_back({static_cast<std::uint32_t>(tensor.first + done),
                          static_cast<std::uint32_t>(std::min<std::size_t>(tensor.count - done, chunk_elements))});
    check(cudaMemcpyAsync(chunks_, table_.data(), chunks_.bytes(), cudaMemcpyHostToDevice, launch.stream));
    check(cudaMemsetAsync(clip_, 0, clip_.bytes(), launch.stream));
  }
  void restore_gradients(Launch& launch) {
    check(cudaMemcpyAsync(scaled_, gradients_, gradients_.bytes(), cudaMemcpyDeviceToDevice, launch.stream));
  }

  void loop_over_tensors(Launch& launch) { loop(launch.stream); }
  void foreach (Launch& launch) {
    norm(launch.stream, 0, chunk_count_, scaled_, nullptr);
    scale(launch.stream, 0, chunk_count_);
    update<Factor::none>(launch.stream, scaled_, clip_);
  }
  void device_scale(Launch& launch) {
    norm(launch.stream, 0, chunk_count_, gradients_, nullptr);
    update<Factor::at_read>(launch.stream, gradients_, clip_);
  }
  void capture_loop(Launch& launch) {
    prepare_table(launch);
    restore_gradients(launch);
    loop(launch.stream);  // a kernel's code is loaded at its first launch: not while a capture is under way
    graph_.capture(launch.stream, [this](cudaStream_t stream) { loop(stream); });
  }
  void loop_in_graph(Launch& launch) { graph_.launch(launch.stream); }
  void no_clipping(Launch& launch) { update<Factor::none>(launch.stream, gradients_, nullptr); }

 private:
  // Deviations of 1e-3 over 124 million are a norm of 11. Some tensors have gradients that are a hundred times as large.
  Pattern gradients() const {
    const Axis all{1, count_};
    const Pattern pattern = normal(0, 1e-3f).times(100, drawn(all, 64)).set(0, drawn(all, count_ / 64 + 1));
    return overflows_ ? pattern.set(std::numeric_limits<float>::infinity(), at(all, 0)) : pattern;
  }
  // A fifth of the norm to be expected, or twice as much.
  float limit() const { return static_cast<float>((is_below_ ? 2 : 0.2) * 1e-3 * std::sqrt(static_cast<double>(count_))); }
  // Between the end of a tensor and the next.
  bool is_gap(std::size_t i) const {
    const auto next = std::upper_bound(tensors_.begin(), tensors_.end(), i,
                                       [](std::size_t element, const Tensor& tensor) { return element < tensor.first; });
    const Tensor& tensor = *(next - 1);
    return i >= tensor.first + tensor.count;
  }
  static Corrections corrections() {
    return {.step_size = static_cast<float>(double{learning_rate} / (1 - std::pow(double{beta1}, step))),
            .inverse_root2 = static_cast<float>(1 / std::sqrt(1 - std::pow(double{beta2}, step)))};
  }

  Decision decision() const { return {clip_, norm_, limit()}; }
  void norm(cudaStream_t stream, std::size_t first_chunk, std::size_t chunks, const bf16* gradients, float* sum) {
    const auto blocks = static_cast<unsigned>(std::min<std::size_t>({chunks, 4 * multiprocessors_, most_norm_blocks}));
    launch_kernel(stream, norm_kernel, {blocks, threads}, chunks_.get() + first_chunk, chunks, gradients, partial_, sum,
                  decision());
  }
  void scale(cudaStream_t stream, std::size_t first_chunk, std::size_t chunks) {
    launch_kernel(stream, scale_kernel, {static_cast<unsigned>(chunks), threads}, chunks_.get() + first_chunk, scaled_,
                  clip_.get());
  }
  template <Factor applied>
  void update(cudaStream_t stream, const bf16* gradients, const Clip* clip) {
    launch_kernel(stream, adamw_kernel<applied>, {static_cast<unsigned>(chunk_count_), threads}, chunks_.get(), gradients,
                  State{weights_, firsts_, seconds_, working_}, clip, corrections());
  }
  void loop(cudaStream_t stream) {
    for (std::size_t t = 0; t < tensors_.size(); ++t)
      norm(stream, tensors_[t].first_chunk, tensors_[t].chunks, scaled_, sums_.get() + t);
    launch_kernel(stream, total_kernel, {1, threads}, sums_.get(), tensors_.size(), decision());
    for (const Tensor& tensor : tensors_) scale(stream, tensor.first_chunk, tensor.chunks);
    update<Factor::none>(stream, scaled_, clip_);
  }

  std::vector<Tensor> tensors_;
  std::size_t count_, chunk_count_;
  bool is_below_, overflows_;
  Input<bf16> gradients_;
  Output<float> norm_;
  InOut<float> weights_, firsts_, seconds_;
  InOut<bf16> working_;
  Scratch<bf16> scaled_;
  Scratch<Chunk> chunks_;
  Scratch<float> sums_, partial_;
  Scratch<Clip> clip_;
  ThreadTeam& team_;
  std::vector<Chunk> table_;  // on the host
  Graph graph_;
  std::size_t multiprocessors_ = multiprocessors();
  double expected_norm_ = 0, factor_ = 1;
};

// Gradients that were scaled in place were rounded to bf16 a second time, by 1.6e-3, and their squares by twice as much; a tenth
// of them is in the first moment, and a change of weights is a twentieth of the weights. The second moments' limit holds for
// weights in bf16 as well.
constexpr Tolerances scaled_in_place = per_output({within(1e-6), within(2e-5, 5e-4), within(2e-3, 1e-2), within(5e-3)});
constexpr Tolerances in_fp32 = per_output({within(1e-6), within(1e-6), within(1e-6), within(2.5e-3)});

}  // namespace

extern constinit const Pair gradient_clipping{
    .teaches = "a clip factor needs no pass over the gradients: the optimizer multiplies by it what it reads anyway",
    .lesson = "device_scale",
    .make = make<GradientClipping>,
    .baseline = {.name = "loop_over_tensors",
                 .run = call<&GradientClipping::loop_over_tensors>,
                 .prepare = call<&GradientClipping::prepare_table>,
                 .reset = call<&GradientClipping::restore_gradients>},
    .optimized = variants({{.name = "foreach",
                            .run = call<&GradientClipping::foreach>,
                            .prepare = call<&GradientClipping::prepare_table>,
                            .reset = call<&GradientClipping::restore_gradients>},
                           {.name = "device_scale",
                            .run = call<&GradientClipping::device_scale>,
                            .prepare = call<&GradientClipping::prepare_table>,
                            .tolerance = in_fp32}}),
    // The baseline's launches without their cost to the host, and the update without any clipping.
    .controls = variants({{.name = "loop_in_graph",
                           .run = call<&GradientClipping::loop_in_graph>,
                           .prepare = call<&GradientClipping::capture_loop>,
                           .reset = call<&GradientClipping::restore_gradients>,
                           .same_bits_as = "loop_over_tensors"},
                          {.name = "no_clipping",
                           .run = call<&GradientClipping::no_clipping>,
                           .prepare = call<&GradientClipping::prepare_table>,
                           .outputs = no_outputs}}),
    .bound = Bound::latency,
    .tolerance = scaled_in_place,
    .start = Start::immediate,  // the launches are half of the subject
    // tensors: 0, those of GPT-2, or so many of equal size.
    .sizes = sizes({{.name = "elements", .full = 124439808, .multiple = 8, .most = 1u << 28},
                    {.name = "tensors", .full = 0, .most = 4096, .scales = false},
                    option("below_limit"),
                    option("overflow")}),
    .sweep = cases({{"tensors_8", "tensors=8"},
                    {"tensors_32", "tensors=32"},
                    {"tensors_128", "tensors=128"},
                    {"tensors_512", "tensors=512"},
                    {"tensors_1024", "tensors=1024"}}),
    .edges = cases({{"tensors_of_one", "elements=1000"},
                    {"tails", "elements=1000000"},
                    {"below_limit", "elements=1000000,below_limit=1"},
                    {"overflow", "elements=1000000,overflow=1"}}),
    .reference_samples = 65536,
};

}  // namespace aisp::ch13
