// SPDX-License-Identifier: Apache-2.0
// One Adam step on the 161 parameter tensors of ResNet-50. Most of them are tiny (106 belong to batch norms), so a launch per
// tensor costs more time than the 28 bytes a parameter that all of them move. One kernel does the work for all: its blocks find
// their piece of a tensor in a table, or, where parameters were allocated as views of one buffer, there is one array to stream.
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

namespace aisp::ch01 {
namespace {

constexpr float learning_rate = 1e-3f, beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;
constexpr int step = 10;  // of the training run: what the bias corrections depend on

constexpr int threads = 512;
constexpr int chunk_size = threads * 4;  // elements of a block

struct Corrections {
  float step_size;      // learning rate / (1 - beta1^step)
  float inverse_root2;  // 1 / sqrt(1 - beta2^step)
};

__device__ void adam(float& weight, float gradient, float& first, float& second, Corrections corrections) {
  first = beta1 * first + (1 - beta1) * gradient;
  second = beta2 * second + (1 - beta2) * gradient * gradient;
  weight -= corrections.step_size * first / (sqrtf(second) * corrections.inverse_root2 + epsilon);
}

// One packet a thread makes four 16-byte loads, enough in flight; see roofline_vector_add for blocks that end soon.
__device__ void adam_packet(float4* weights, const float4* gradients, float4* firsts, float4* seconds, Corrections corrections) {
  float4 weight = *weights, first = *firsts, second = *seconds;
  const float4 gradient = *gradients;
  adam(weight.x, gradient.x, first.x, second.x, corrections);
  adam(weight.y, gradient.y, first.y, second.y, corrections);
  adam(weight.z, gradient.z, first.z, second.z, corrections);
  adam(weight.w, gradient.w, first.w, second.w, corrections);
  *weights = weight;
  *firsts = first;
  *seconds = second;
}

// A block's share of a tensor. The pointers are here and not behind an index of a tensor, so that one lookup, not two in a row,
// comes before the first parameter is loaded.
struct alignas(16) Chunk {
  float4* weights;
  const float4* gradients;
  float4* firsts;
  float4* seconds;
  int packets;
};

__global__ __launch_bounds__(threads) void tensor_table_kernel(const Chunk* chunks, Corrections corrections) {
  const Chunk chunk = chunks[blockIdx.x];
  const int i = threadIdx.x;
  if (i < chunk.packets) adam_packet(chunk.weights + i, chunk.gradients + i, chunk.firsts + i, chunk.seconds + i, corrections);
}

__global__ __launch_bounds__(threads) void range_kernel(float4* weights, const float4* gradients, float4* firsts, float4* seconds,
                                                        int packets, Corrections corrections) {
  const int i = blockIdx.x * threads + threadIdx.x;
  if (i < packets) adam_packet(weights + i, gradients + i, firsts + i, seconds + i, corrections);
}

// Elements of the tensors in the order of the network: convolutions (output channels x input channels x k x k), each followed by
// the weights and biases of its batch norm, and the classifier.
std::vector<std::size_t> resnet50() {
  std::vector<std::size_t> sizes;
  const auto convolution = [&](std::size_t out, std::size_t in, std::size_t k) {
    for (const std::size_t size : {out * in * k * k, out, out}) sizes.push_back(size);
  };
  convolution(64, 3, 7);
  std::size_t in = 64, width = 64;
  for (const int blocks : {3, 4, 6, 3}) {
    for (int block = 0; block < blocks; ++block) {
      convolution(width, in, 1);
      convolution(width, width, 3);
      convolution(4 * width, width, 1);
      if (block == 0) convolution(4 * width, in, 1);
      in = 4 * width;
    }
    width *= 2;
  }
  sizes.push_back(1000 * in);
  sizes.push_back(1000);
  return sizes;
}

struct Tensor {
  std::size_t first, count;  // within the buffers
};

// Every size is a multiple of four, so tensors that follow one another without gaps all start at 16-byte boundaries.
std::vector<Tensor> lay_out(const Setup& setup) {
  std::vector<Tensor> tensors;
  std::size_t first = 0;
  for (const std::size_t size : resnet50()) {
    tensors.push_back({first, setup.scaled(size, 4)});
    first += tensors.back().count;
  }
  return tensors;
}

class MultiTensorUpdate final : public Workload {
 public:
  explicit MultiTensorUpdate(Setup& setup)
      : tensors_{lay_out(setup)},
        count_{tensors_.back().first + tensors_.back().count},
        gradients_{setup.input<float>(count_, normal(0, 0.1f), {.name = "gradients"})},
        weights_{setup.inout<float>(count_, uniform(-1, 1), {.name = "weights"})},
        firsts_{setup.inout<float>(count_, normal(0, 0.03f), {.name = "first moments"})},
        seconds_{setup.inout<float>(count_, uniform(5e-5f, 2e-4f), {.name = "second moments"})},
        chunks_{setup.scratch<Chunk>(chunk_count(), {.name = "table of chunks"})} {}

  Cost cost() const override {
    return {.flops = 13.0 * static_cast<double>(count_),
            .bytes = static_cast<double>(gradients_.bytes() + 2 * (weights_.bytes() + firsts_.bytes() + seconds_.bytes()))};
  }
  double expected_output(int output, std::size_t i) const override {
    const double gradient = gradients_.host(i);
    const double first = double{beta1} * firsts_.initial(i) + (1 - double{beta1}) * gradient;
    const double second = double{beta2} * seconds_.initial(i) + (1 - double{beta2}) * gradient * gradient;
    if (output != 0) return output == 1 ? first : second;
    const double corrected1 = first / (1 - std::pow(double{beta1}, step));
    const double corrected2 = second / (1 - std::pow(double{beta2}, step));
    return weights_.initial(i) - double{learning_rate} * corrected1 / (std::sqrt(corrected2) + double{epsilon});
  }

  void launch_per_tensor(Launch& launch) {
    for (const Tensor& tensor : tensors_) update_range(launch, tensor.first, tensor.count);
  }
  // The set of tensors does not change during a training run: the table is made once.
  void fill_table(Launch& launch) {
    table_.clear();
    for (const Tensor& tensor : tensors_)
      for (std::size_t done = 0; done < tensor.count; done += chunk_size) {
        const std::size_t first = tensor.first + done, left = tensor.count - done;
        table_.push_back({packets(weights_ + first), packets(gradients_ + first), packets(firsts_ + first),
                          packets(seconds_ + first), static_cast<int>(std::min<std::size_t>(left, chunk_size) / 4)});
      }
    check(cudaMemcpyAsync(chunks_, table_.data(), chunks_.bytes(), cudaMemcpyHostToDevice, launch.stream));
  }
  void tensor_table(Launch& launch) {
    tensor_table_kernel<<<static_cast<unsigned>(chunks_.size()), threads, 0, launch.stream>>>(chunks_, corrections());
    check(cudaGetLastError());
  }
  void flat_buffer(Launch& launch) { update_range(launch, 0, count_); }

 private:
  void update_range(Launch& launch, std::size_t first, std::size_t count) {
    const auto blocks = static_cast<unsigned>((count + chunk_size - 1) / chunk_size);
    range_kernel<<<blocks, threads, 0, launch.stream>>>(packets(weights_ + first), packets(gradients_ + first),
                                                        packets(firsts_ + first), packets(seconds_ + first),
                                                        static_cast<int>(count / 4), corrections());
    check(cudaGetLastError());
  }
  static float4* packets(float* values) { return reinterpret_cast<float4*>(values); }
  static const float4* packets(const float* values) { return reinterpret_cast<const float4*>(values); }
  static Corrections corrections() {
    return {.step_size = static_cast<float>(double{learning_rate} / (1 - std::pow(double{beta1}, step))),
            .inverse_root2 = static_cast<float>(1 / std::sqrt(1 - std::pow(double{beta2}, step)))};
  }
  std::size_t chunk_count() const {
    std::size_t chunks = 0;
    for (const Tensor& tensor : tensors_) chunks += (tensor.count + chunk_size - 1) / chunk_size;
    return chunks;
  }

  std::vector<Tensor> tensors_;
  std::size_t count_;
  Input<float> gradients_;
  InOut<float> weights_, firsts_, seconds_;
  Scratch<Chunk> chunks_;
  std::vector<Chunk> table_;  // on the host
};

}  // namespace

extern constinit const Pair multi_tensor_update{
    .teaches = "many small launches cost more than the memory traffic they carry: hand one kernel a table of tensors",
    .lesson = "tensor_table",
    .make = make<MultiTensorUpdate>,
    .baseline = {.name = "launch_per_tensor", .run = call<&MultiTensorUpdate::launch_per_tensor>},
    .optimized = variants(
        {{.name = "tensor_table", .run = call<&MultiTensorUpdate::tensor_table>, .prepare = call<&MultiTensorUpdate::fill_table>},
         {.name = "flat_buffer", .run = call<&MultiTensorUpdate::flat_buffer>}}),
    .bound = Bound::latency,
    // A handful of fp32 roundings; a weight that missed its update of about 5e-4 would be off by a thousand times as much.
    .tolerance = within(2e-7, 1e-5),
    .start = Start::immediate,  // the launches are the subject
    .reference_samples = 65536,
};

}  // namespace aisp::ch01
