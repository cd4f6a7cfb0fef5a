// SPDX-License-Identifier: Apache-2.0
// Decoding a token through the sixteen MLP blocks of a small language model is one read of 1.6 GB of weights. As a graph of
// kernels the read stops at each border, until the last block is done and the first of the next kernel has its data. Programmatic
// edges let the next kernel request weights before that. One persistent kernel has no borders: counters in memory order
// its work.
#include <cuda_bf16.h>
#include <aisp/device/fence.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/reduce.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/dispatch.hpp>
#include <aisp/graph.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/libraries/fastest.hpp>
#include <aisp/opened.hpp>
#include <aisp/pair.hpp>

#include <cmath>
#include <vector>

#include "mlp_rows.cuh"

namespace aisp::ch12 {
namespace {

using namespace mlp;

constexpr int ring_threads = 512, ring_warps = ring_threads / device::warp_size;
constexpr int part = 128;  // packets of 16 bytes that a bulk copy brings, 2 KiB

template <int batch>
constexpr int stages = batch == 1   ? 6
                       : batch == 2 ? 5
                                    : 4;  // of a warp's ring; more activations leave less room

template <int batch>
struct RingMemory {
  uint4 ring[ring_warps][stages<batch>][part];
  std::uint64_t full[ring_warps][stages<batch>];
  float sums[norm_warps];
};

// The order in which a warp reads its weights: in each layer its pairs of gate and up rows, then its rows of down.
struct Cursor {
  int border = 0;  // twice the layer; one more for down
  int row, at = 0;

  __device__ void advance(const Network& n, int first, int step) {
    if (++at < parts(n)) return;
    at = 0;
    row += step;
    skip(n, first);
  }
  __device__ void skip(const Network& n, int first) {
    while (border < 2 * n.layers && row >= rows(n)) row = first, ++border;
  }
  __device__ int rows(const Network& n) const { return border % 2 == 0 ? n.hidden() : n.width; }
  __device__ int parts(const Network& n) const { return (border % 2 == 0 ? 2 * n.width : n.hidden()) / 8 / part; }
  __device__ const uint4* source(const Network& n) const {
    const uint4* const from = border % 2 == 0 ? n.pair(border / 2, row) : n.down_row(border / 2, row);
    return from + at * part;
  }
};

// A warp's ring of weights. With `across`, those of the next step are requested while this one's are not all used.
template <int batch, bool across>
struct Reader {
  const Network& n;
  RingMemory<batch>& shared;
  int lane, warp, first, step;  // the warp's rows
  Cursor next;                  // to be requested
  int requested = 0, used = 0;

  __device__ __forceinline__ void refill(int border) {
    constexpr unsigned part_bytes = part * sizeof(uint4);
#pragma unroll 1
    while (requested < used + stages<batch> && next.border < 2 * n.layers && (across || next.border == border)) {
      const int s = requested++ % stages<batch>;
      if (lane == 0) {
        device::barrier_arrive_expect(&shared.full[warp][s], part_bytes);
        device::bulk_load(shared.ring[warp][s], next.source(n), part_bytes, &shared.full[warp][s]);
      }
      next.advance(n, first, step);
    }
  }
  // Adds the products of `count` parts with what lies from `with` on, `pitch` packets from one row of the batch to the next.
  __device__ __forceinline__ void add_parts(float (&sums)[batch], int border, int count, const uint4* with, int pitch) {
#pragma unroll 1
    for (int p = 0; p < count; ++p) {
      const int s = used % stages<batch>;
      device::barrier_wait(&shared.full[warp][s], used / stages<batch> % 2);
#pragma unroll
      for (int i = 0; i < part; i += device::warp_size)
#pragma unroll
        for (int b = 0; b < batch; ++b)
          sums[b] = multiply_add(shared.ring[warp][s][i + lane], with[b * pitch + p * part + i + lane], sums[b]);
      __syncwarp();  // all lanes have read the stage
      ++used;
      refill(border);
    }
  }
};

// Until all blocks have come here; what they wrote before is seen after it.
__device__ void meet(unsigned* arrived) {
  __syncthreads();
  if (threadIdx.x == 0) {
    device::add_release_gpu(arrived, 1);
    while (device::load_acquire_gpu(arrived) < gridDim.x) {
    }
  }
  __syncthreads();
}

// Every block works on every layer; its warps take rows in turn, so that what does not divide evenly spreads over all SMs.
// Without the bound of one block for each SM the compiler spills.
template <int batch, bool across>
__global__ __launch_bounds__(ring_threads, 1) void ring_kernel(Network n, const float* in, float* x, bf16* hidden,
                                                               unsigned* arrived) {
  extern __shared__ __align__(128) unsigned char space[];
  RingMemory<batch>& shared = *reinterpret_cast<RingMemory<batch>*>(space);
  uint4* const activations = reinterpret_cast<uint4*>(space + sizeof(RingMemory<batch>));
  const int lane = threadIdx.x % device::warp_size, warp = threadIdx.x / device::warp_size;
  const int first = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  const int step = static_cast<int>(gridDim.x) * ring_warps;
  if (lane == 0)
    for (int s = 0; s < stages<batch>; ++s) device::barrier_init(&shared.full[warp][s], 1);
  device::fence_barrier_init();
  __syncthreads();

  Reader<batch, across> weights{n, shared, lane, warp, first, step, {0, first}};
  weights.next.skip(n, first);
  weights.refill(0);
  const int packets = n.width / 8, hidden_packets = n.hidden() / 8;
#pragma unroll 1
  for (int layer = 0; layer < n.layers; ++layer) {
    const float* const from = layer == 0 ? in : x;
    normalize<batch>(from, n, layer, reinterpret_cast<bf16*>(activations), shared.sums);
    weights.refill(2 * layer);
#pragma unroll 1
    for (int row = first; row < n.hidden(); row += step) {
      float gate[batch] = {}, up[batch] = {};
      weights.add_parts(gate, 2 * layer, packets / part, activations, packets);
      weights.add_parts(up, 2 * layer, packets / part, activations, packets);
      store_hidden(gate, up, n, row, hidden);
    }
    meet(&arrived[2 * layer]);
    for (int i = threadIdx.x; i < batch * hidden_packets; i += ring_threads)
      activations[i] = __ldcg(reinterpret_cast<const uint4*>(hidden) + i);
    __syncthreads();
    weights.refill(2 * layer + 1);
#pragma unroll 1
    for (int row = first; row < n.width; row += step) {
      float sums[batch] = {};
      weights.add_parts(sums, 2 * layer + 1, hidden_packets / part, activations, hidden_packets);
      store_residual(sums, n, row, from, x);
    }
    if (layer + 1 < n.layers) meet(&arrived[2 * layer + 1]);
  }
}

class Megakernel final : public Workload {
 public:
  explicit Megakernel(Setup& setup)
      : layers_{setup.size("layers")},
        width_{setup.size("width")},
        batch_{setup.size("batch")},
        in_{setup.input<float>(batch_ * width_, normal(0, 1), {.name = "hidden state"})},
        gains_{setup.input<float>(layers_ * width_, uniform(0.5f, 1.5f), {.name = "gains"})},
        gate_up_{setup.input<bf16>(layers_ * 8 * width_ * width_, normal(0, 1 / std::sqrt(static_cast<float>(width_))),
                                   {.name = "gate and up", .constant = true})},
        down_{setup.input<bf16>(layers_ * 4 * width_ * width_, normal(0, 0.25f / std::sqrt(static_cast<float>(width_))),
                                {.name = "down", .constant = true})},
        out_{setup.output<float>(batch_ * width_, {.name = "last hidden state"})},
        normalized_{setup.scratch<bf16>(batch_ * width_)},
        hidden_{setup.scratch<bf16>(batch_ * 4 * width_)},
        arrived_{setup.scratch<unsigned>(2 * layers_)},
        products_{setup.scratch<float>(batch_ * 8 * width_)},
        exact_{setup.scratch<double>(batch_ * 5 * width_)},
        cublas_{setup} {}

  Cost cost() const override {
    const auto weights = static_cast<double>(gate_up_.size() + down_.size());
    return {.flops = 2 * weights * static_cast<double>(batch_),
            .math = Math::fp32,
            .bytes = static_cast<double>(gate_up_.bytes() + down_.bytes() + gains_.bytes()),
            .dependent_kernels = 1};
  }
  // In float64 on the GPU, and without any rounding in between.
  void compute_reference(Launch& launch) override {
    double *const x = exact_, *const hidden = exact_ + batch_ * width_;
    launch(widen_kernel, {blocks(batch_ * width_, threads), threads}, in_, x, batch_ * width_);
    for (int layer = 0; layer < static_cast<int>(layers_); ++layer) {
      launch(exact_gate_up_kernel, {blocks(4 * width_, warps), threads}, network(), layer, batch_, x, hidden);
      launch(exact_down_kernel, {blocks(width_, warps), threads}, network(), layer, batch_, hidden, x);
    }
    reference_.resize(batch_ * width_);
    check(cudaMemcpyAsync(reference_.data(), x, reference_.size() * sizeof(double), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
  }
  double expected(std::size_t i) const override { return reference_[i]; }

  void capture_three(Launch& launch) {
    capture(three_, launch, [this]<int batch>(cudaStream_t stream, int layer, const float* from) {
      launch_kernel(stream, norm_kernel<batch>, {1, threads}, network(), layer, from, normalized_);
      launch_kernel(stream, gate_up_kernel<batch, Norm::done, false>, {blocks(4 * width_, warps), threads}, network(), layer,
                    from, normalized_, hidden_);
      launch_kernel(stream, down_kernel<batch, false>, {blocks(width_, warps), threads}, network(), layer, hidden_, from, out_);
    });
  }
  void three_kernels(Launch& launch) { three_.launch(launch.stream); }

  template <bool early>
  void capture_two(Launch& launch) {
    capture(early ? programmatic_ : two_, launch, [this]<int batch>(cudaStream_t stream, int layer, const float* from) {
      launch_kernel(stream, gate_up_kernel<batch, Norm::in_block, early>,
                    {.blocks = blocks(4 * width_, warps),
                     .threads = threads,
                     .shared_bytes = batch_ * width_ * sizeof(bf16),
                     .overlapping = early},
                    network(), layer, from, nullptr, hidden_);
      launch_kernel(stream, down_kernel<batch, early>,
                    {.blocks = blocks(width_, warps), .threads = threads, .overlapping = early}, network(), layer, hidden_, from,
                    out_);
    });
  }
  void two_kernels(Launch& launch) { two_.launch(launch.stream); }
  void pdl_graph(Launch& launch) { programmatic_.launch(launch.stream); }

  void megakernel(Launch& launch) { run_ring<true>(launch); }
  void no_prefetch(Launch& launch) { run_ring<false>(launch); }

  void capture_cublas(Launch& launch) {
    constexpr std::size_t ways = 2;
    const auto best = fastest(launch.stream, ways, [&](std::size_t way) {
      multiply(launch.stream, way, gate_up_, 8 * width_, width_, normalized_, products_, false);
    });
    if (!best) throw Unsupported{"cuBLAS has no routine for this product"};
    capture(library_, launch, [&]<int batch>(cudaStream_t stream, int layer, const float* from) {
      const auto l = static_cast<std::size_t>(layer);
      if (layer == 0) check(cudaMemcpyAsync(out_, in_, in_.bytes(), cudaMemcpyDeviceToDevice, stream));
      launch_kernel(stream, norm_kernel<batch>, {1, threads}, network(), layer, from, normalized_);
      multiply(stream, *best, gate_up_ + l * 8 * width_ * width_, 8 * width_, width_, normalized_, products_, false);
      launch_kernel(stream, swiglu_kernel, {blocks(batch_ * 4 * width_, threads), threads}, products_, hidden_,
                    batch_ * 4 * width_);
      multiply(stream, *best, down_ + l * 4 * width_ * width_, width_, 4 * width_, hidden_, out_, true);
    });
  }
  void cublas_graph(Launch& launch) { library_.launch(launch.stream); }

  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("weights", 1e-12 * static_cast<double>(gate_up_.bytes() + down_.bytes()), "TB/s");
  }

 private:
  static unsigned blocks(std::size_t count, std::size_t in_a_block) {
    return static_cast<unsigned>((count + in_a_block - 1) / in_a_block);
  }
  Network network() const {
    return {reinterpret_cast<const uint4*>(gate_up_.get()), reinterpret_cast<const uint4*>(down_.get()), gains_,
            static_cast<int>(layers_), static_cast<int>(width_)};
  }
  template <class Layer>
  void capture(Graph& graph, Launch& launch, const Layer& layer) {
    dispatch<1, 2, 4>("batch", batch_, [&]<int batch>() {
      const auto all = [&](cudaStream_t stream) {
        for (int l = 0; l < static_cast<int>(layers_); ++l)
          layer.template operator()<batch>(stream, l, l == 0 ? in_.get() : static_cast<const float*>(out_));
      };
      all(launch.stream);  // kernels are loaded at their first launch
      graph.capture(launch.stream, all);
    });
  }
  template <bool across>
  void run_ring(Launch& launch) {
    check(cudaMemsetAsync(arrived_, 0, arrived_.bytes(), launch.stream));
    dispatch<1, 2, 4>("batch", batch_, [&]<int batch>() {
      launch(ring_kernel<batch, across>,
             {.blocks = multiprocessors(),
              .threads = ring_threads,
              .shared_bytes = sizeof(RingMemory<batch>) + hidden_.bytes(),
              .cooperative = true},
             network(), in_, out_, hidden_, arrived_);
    });
  }
  // y[batch][rows] = weights[rows][columns] x[batch][columns], added to y where told so; cuBLAS sees matrices transposed.
  void multiply(cudaStream_t stream, std::size_t way, const bf16* weights, std::size_t rows, std::size_t columns, const bf16* x,
                float* y, bool adds) const {
    const int m = static_cast<int>(rows), k = static_cast<int>(columns), count = static_cast<int>(batch_);
    const float one = 1, beta = adds ? 1 : 0;
    cublas_->use(stream);
    if (way == 0)
      check(Cublas::function<Cublas::GemmEx>("cublasGemmEx")(cublas_->handle(), CUBLAS_OP_T, CUBLAS_OP_N, m, count, k, &one,
                                                             weights, CUDA_R_16BF, k, x, CUDA_R_16BF, k, &beta, y, CUDA_R_32F, m,
                                                             CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    else
      check(Cublas::function<decltype(cublasTSSgemvStridedBatched)>("cublasTSSgemvStridedBatched")(
          cublas_->handle(), CUBLAS_OP_T, k, m, &one, weights, k, 0, x, 1, k, &beta, y, 1, m, count));
  }

  std::size_t layers_, width_, batch_;
  Input<float> in_, gains_;
  Input<bf16> gate_up_, down_;
  Output<float> out_;
  Scratch<bf16> normalized_, hidden_;
  Scratch<unsigned> arrived_;
  Scratch<float> products_;
  Scratch<double> exact_;
  Opened<Cublas> cublas_;
  Graph three_, two_, programmatic_, library_;
  std::vector<double> reference_;
};

constexpr KernelLimits no_spills{.local_bytes = 0};

}  // namespace

extern constinit const Pair megakernel{
    .teaches =
        "one persistent kernel that orders its work by counters has no kernel borders between layers; even a graph with "
        "programmatic edges starts and ends a kernel at each",
    .lesson = "megakernel",
    .make = make<Megakernel>,
    .baseline = {.name = "three_kernels", .run = call<&Megakernel::three_kernels>, .prepare = call<&Megakernel::capture_three>},
    .optimized = variants({{.name = "two_kernels",
                            .run = call<&Megakernel::two_kernels>,
                            .prepare = call<&Megakernel::capture_two<false>>,
                            .same_bits_as = "three_kernels"},
                           {.name = "pdl_graph",
                            .run = call<&Megakernel::pdl_graph>,
                            .prepare = call<&Megakernel::capture_two<true>>,
                            .needs = {.min_sm = 90},
                            .same_bits_as = "three_kernels"},
                           {.name = "megakernel",
                            .run = call<&Megakernel::megakernel>,
                            .needs = {.min_sm = 90},
                            .same_bits_as = "three_kernels",
                            .kernels = no_spills}}),
    // The same kernel, whose ring runs empty at every border.
    .controls = variants({{.name = "no_prefetch",
                           .run = call<&Megakernel::no_prefetch>,
                           .needs = {.min_sm = 90},
                           .same_bits_as = "three_kernels"}}),
    .libraries = variants({{.name = "cublas_graph",
                            .run = call<&Megakernel::cublas_graph>,
                            .prepare = call<&Megakernel::capture_cublas>,
                            .needs = {.libraries = {Library::cublas}}}}),
    .bound = Bound::memory,
    // Normalized and hidden values are rounded to bf16, 1.6e-3 each; a layer adds a third of the residual's size at first.
    .tolerance = within(4e-3),
    .sizes = sizes({{.name = "layers", .full = 16, .most = 64},
                    {.name = "width", .full = 2048, .multiple = 1024, .most = 4096, .scales = false},
                    {.name = "batch", .full = 1, .most = 4, .scales = false}}),
    .sweep = cases({{"width_1024", "width=1024"},
                    {"width_2048", "width=2048"},
                    {"width_4096", "width=4096"},
                    {"batch_1", "batch=1"},
                    {"batch_2", "batch=2"},
                    {"batch_4", "batch=4"}}),
    .edges = cases({{"one_layer", "layers=1,width=1024"}, {"three_rows", "layers=3,width=3072,batch=2"}}),
};

}  // namespace aisp::ch12
