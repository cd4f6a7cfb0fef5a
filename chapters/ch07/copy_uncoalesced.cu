// SPDX-License-Identifier: Apache-2.0
// Copying an array. On a CPU every thread takes one contiguous chunk, so that it stays in its own cache lines. On a GPU the 32
// threads of a warp execute one load together: with chunks its addresses lie in 32 different lines, and each line is asked for
// again and again. Dealt out in turn, element i to thread i mod T, the same threads' loads are one line each; what is left is to
// have more than one of them in flight.
#include <aisp/pair.hpp>

namespace aisp::ch07 {
namespace {

constexpr int threads = 256;
constexpr int batch = 8;  // loads that a thread has in flight before its first store

__device__ unsigned thread_index() { return blockIdx.x * threads + threadIdx.x; }

// T is a float, or four of them as 16 bytes; `chunk` and `count` are in units of it.
template <class T>
__global__ __launch_bounds__(threads) void blocked_kernel(const T* in, T* out, unsigned chunk, unsigned count) {
  const unsigned first = thread_index() * chunk, last = min(first + chunk, count);
  for (unsigned i = first; i < last; ++i) out[i] = in[i];
}

// The compiler may not move a load above the store before it, which might write what is loaded: one load is in flight at a time.
__global__ __launch_bounds__(threads) void interleaved_kernel(const float* in, float* out, unsigned count) {
  const unsigned stride = gridDim.x * threads;
  for (unsigned i = thread_index(); i < count; i += stride) out[i] = in[i];
}

__global__ __launch_bounds__(threads) void interleaved_batched_kernel(const float* in, float* out, unsigned count) {
  const unsigned stride = gridDim.x * threads;
  unsigned i = thread_index();
  for (; i + (batch - 1) * stride < count; i += batch * stride) {
    float value[batch];
#pragma unroll
    for (int k = 0; k < batch; ++k) value[k] = in[i + k * stride];
#pragma unroll
    for (int k = 0; k < batch; ++k) out[i + k * stride] = value[k];
  }
  for (; i < count; i += stride) out[i] = in[i];
}

class CopyUncoalesced final : public Workload {
 public:
  explicit CopyUncoalesced(Setup& setup)
      : count_{setup.scaled(64 << 20, 1 << 16)},
        chunk_{setup.size("chunk")},
        in_{setup.input<float>(count_, uniform(-1, 1), {.name = "in"})},
        out_{setup.output<float>(count_, {.name = "out"})} {}

  Cost cost() const override { return {.bytes = static_cast<double>(in_.bytes() + out_.bytes())}; }
  double expected(std::size_t i) const override { return in_.host(i); }

  void blocked(Launch& launch) { launch(blocked_kernel<float>, {blocks(), threads}, in_, out_, chunk_, count_); }
  void blocked_vec16(Launch& launch) {
    if (chunk_ % 4 != 0) throw Unsupported{"a thread's chunk is no multiple of the four floats that a 16-byte access moves"};
    launch(blocked_kernel<float4>, {blocks(), threads}, reinterpret_cast<const float4*>(in_.get()),
           reinterpret_cast<float4*>(out_.get()), chunk_ / 4, count_ / 4);
  }
  void interleaved(Launch& launch) { launch(interleaved_kernel, {blocks(), threads}, in_, out_, count_); }
  void interleaved_batched(Launch& launch) { launch(interleaved_batched_kernel, {blocks(), threads}, in_, out_, count_); }
  void cuda_memcpy(Launch& launch) {
    check(cudaMemcpyAsync(out_, in_.get(), in_.bytes(), cudaMemcpyDeviceToDevice, launch.stream));
  }

 private:
  // As many threads for every variant as chunks, in whole blocks.
  unsigned blocks() const {
    const std::size_t per_block = chunk_ * threads;
    return static_cast<unsigned>((count_ + per_block - 1) / per_block);
  }

  std::size_t count_, chunk_;  // chunk: consecutive floats of a thread of the baseline
  Input<float> in_;
  Output<float> out_;
};

}  // namespace

extern constinit const Pair copy_uncoalesced{
    .teaches =
        "on a CPU each thread takes one contiguous chunk; on a GPU that spreads every access of a warp over 32 cache lines",
    .lesson = "interleaved",
    .make = make<CopyUncoalesced>,
    .baseline = {.name = "blocked", .run = call<&CopyUncoalesced::blocked>},
    .optimized = variants({{.name = "interleaved", .run = call<&CopyUncoalesced::interleaved>},
                           {.name = "interleaved_batched", .run = call<&CopyUncoalesced::interleaved_batched>}}),
    .controls = variants({{.name = "blocked_vec16", .run = call<&CopyUncoalesced::blocked_vec16>}}),
    .libraries = variants({{.name = "cuda_memcpy", .run = call<&CopyUncoalesced::cuda_memcpy>}}),
    .bound = Bound::memory,
    .tolerance = exact,
    .sizes = sizes({{.name = "chunk", .full = 256, .most = 1024, .scales = false}}),
    .sweep = cases({{"chunk_1", "chunk=1"},
                    {"chunk_2", "chunk=2"},
                    {"chunk_4", "chunk=4"},
                    {"chunk_8", "chunk=8"},
                    {"chunk_16", "chunk=16"},
                    {"chunk_32", "chunk=32"},
                    {"chunk_64", "chunk=64"},
                    {"chunk_256", "chunk=256"}}),
    .edges = cases({{"chunk_1", "chunk=1"}, {"chunk_127", "chunk=127"}}),
};

}  // namespace aisp::ch07
