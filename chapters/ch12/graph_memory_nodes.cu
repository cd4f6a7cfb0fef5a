// SPDX-License-Identifier: Apache-2.0
// Sixty-four stages of a separable filter, each with a temporary and an image of its own from the stream-ordered allocator. Every
// kernel is short, so the host's calls set the pace: 128 launches and 256 of the allocator. Captured, allocations and releases
// become nodes with fixed addresses, and code that allocates is replayed like any other.
#include <aisp/device_attribute.hpp>
#include <aisp/graph.hpp>
#include <aisp/pair.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace aisp::ch12 {
namespace {

constexpr int threads = 256, radius = 2;

// Stages blur and sharpen by turns, so that the image keeps its detail: a share of each value is replaced by the binomial mean
// of five, or as much of it taken away.
template <class T>
struct Taps {
  T weights[2 * radius + 1];
};
template <class T>
constexpr Taps<T> taps_of(std::size_t stage) {
  constexpr double binomial[] = {1.0 / 16, 4.0 / 16, 6.0 / 16, 4.0 / 16, 1.0 / 16};
  const double share = stage % 2 == 0 ? 0.3 : -0.3;
  Taps<T> taps{};
  for (int k = 0; k <= 2 * radius; ++k) taps.weights[k] = static_cast<T>(share * binomial[k] + (k == radius ? 1 - share : 0));
  return taps;
}

// Filters one row: y[i] = sum of weights[k] x[i + k - radius], and of one column. The image's edge is repeated.
template <bool horizontal, class From, class T>
__global__ __launch_bounds__(threads) void filter_kernel(const From* in, T* out, Taps<T> taps, int n) {
  const int i = blockIdx.x * threads + threadIdx.x;
  if (i >= n * n) return;
  const int row = i / n, column = i % n;
  T sum = 0;
#pragma unroll
  for (int k = -radius; k <= radius; ++k) {
    const int from = horizontal ? row * n + min(max(column + k, 0), n - 1) : min(max(row + k, 0), n - 1) * n + column;
    sum += taps.weights[k + radius] * static_cast<T>(in[from]);
  }
  out[i] = sum;
}

class Pool {
 public:
  Pool() {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    check(cudaGetDevice(&properties.location.id));
    check(cudaMemPoolCreate(&pool_, &properties));
    std::uint64_t keep_all = ~std::uint64_t{0};  // otherwise each wait for the GPU gives its memory back
    check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep_all));
  }
  ~Pool() { cudaMemPoolDestroy(pool_); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  float* allocate(std::size_t count, cudaStream_t stream) const {
    void* memory = nullptr;
    check(cudaMallocFromPoolAsync(&memory, count * sizeof(float), pool_, stream));
    return static_cast<float*>(memory);
  }
  static void release(const float* memory, cudaStream_t stream) { check(cudaFreeAsync(const_cast<float*>(memory), stream)); }
  std::uint64_t most_bytes() const {
    std::uint64_t bytes = 0;
    check(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrUsedMemHigh, &bytes));
    return bytes;
  }

 private:
  cudaMemPool_t pool_ = nullptr;
};

class GraphMemoryNodes final : public Workload {
 public:
  explicit GraphMemoryNodes(Setup& setup)
      : n_{setup.size("image")},
        stages_{64},
        in_{setup.input<float>(pixels(), uniform(-1, 1), {.name = "image"})},
        out_{setup.output<float>(pixels(), {.name = "filtered"})},
        buffers_{setup.scratch<float>(3 * pixels())},
        precise_{setup.scratch<double>(2 * pixels())} {}
  ~GraphMemoryNodes() override {
    allocating_.reset();
    int device = 0;
    if (cudaGetDevice(&device) == cudaSuccess) cudaDeviceGraphMemTrim(device);
  }

  // 128 dependent kernels, each of which reads an image and writes one: from L2 and to it, where it holds three of them.
  Cost cost() const override {
    const double kernels = 2.0 * static_cast<double>(stages_), bytes = kernels * 2 * static_cast<double>(in_.bytes());
    const bool resident = 3 * in_.bytes() <= static_cast<std::size_t>(device_attribute(cudaDevAttrL2CacheSize));
    return in_turn({{.bytes = resident ? 0 : bytes, .l2_bytes = bytes}, {.dependent_kernels = kernels}});
  }

  // The same stages in float64.
  void compute_reference(Launch& launch) override {
    double* image = precise_ + pixels();
    for (std::size_t stage = 0; stage < stages_; ++stage) {
      if (stage == 0) filter<true>(launch.stream, in_.get(), precise_.get(), stage);
      else filter<true>(launch.stream, image, precise_.get(), stage);
      filter<false>(launch.stream, precise_.get(), image, stage);
    }
    reference_.resize(pixels());
    check(cudaMemcpyAsync(reference_.data(), image, pixels() * sizeof(double), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
  }
  double expected(std::size_t index) const override { return reference_[index]; }

  void metrics(std::string_view variant, Metrics& metrics) override {
    double bytes = static_cast<double>(buffers_.bytes());
    if (variant == "allocate_in_stream") bytes = static_cast<double>(pool_.most_bytes());
    if (variant == "memory_nodes") bytes = graph_bytes();
    metrics.report("footprint", bytes / (1 << 20), "MiB", Metrics::Better::lower);
  }

  void allocate_in_stream(Launch& launch) { allocating(launch.stream); }
  void stream_preallocated(Launch& launch) { rotating(launch.stream); }

  void capture_allocating(Launch& launch) {
    allocating(launch.stream);
    allocating_.emplace();
    allocating_->capture(launch.stream, [this](cudaStream_t stream) { allocating(stream); });
  }
  void memory_nodes(Launch& launch) { allocating_->launch(launch.stream); }

  void capture_rotating(Launch& launch) {
    rotating(launch.stream);
    rotating_.capture(launch.stream, [this](cudaStream_t stream) { rotating(stream); });
  }
  void planned_buffers(Launch& launch) { rotating_.launch(launch.stream); }

 private:
  std::size_t pixels() const { return n_ * n_; }
  static double graph_bytes() {
    int device = 0;
    std::uint64_t bytes = 0;
    check(cudaGetDevice(&device));
    check(cudaDeviceGetGraphMemAttribute(device, cudaGraphMemAttrUsedMemHigh, &bytes));
    return static_cast<double>(bytes);
  }

  template <bool horizontal, class From, class T>
  void filter(cudaStream_t stream, const From* in, T* out, std::size_t stage) const {
    const auto blocks = static_cast<unsigned>((pixels() + threads - 1) / threads);
    launch_kernel(stream, filter_kernel<horizontal, From, T>, {blocks, threads}, in, out, taps_of<T>(stage), n_);
  }
  void run_stage(cudaStream_t stream, const float* from, float* between, float* to, std::size_t stage) const {
    filter<true>(stream, from, between, stage);
    filter<false>(stream, static_cast<const float*>(between), to, stage);
  }

  void allocating(cudaStream_t stream) const {
    const float* image = in_;
    for (std::size_t stage = 0; stage < stages_; ++stage) {
      float* const between = pool_.allocate(pixels(), stream);
      float* const next = stage + 1 == stages_ ? out_.get() : pool_.allocate(pixels(), stream);
      run_stage(stream, image, between, next, stage);
      Pool::release(between, stream);
      if (stage > 0) Pool::release(image, stream);
      image = next;
    }
  }
  void rotating(cudaStream_t stream) const {
    const float* image = in_;
    for (std::size_t stage = 0; stage < stages_; ++stage) {
      float* const next = stage + 1 == stages_ ? out_.get() : buffers_ + (1 + stage % 2) * pixels();
      run_stage(stream, image, buffers_, next, stage);
      image = next;
    }
  }

  std::size_t n_, stages_;
  Input<float> in_;
  Output<float> out_;
  Scratch<float> buffers_;
  Scratch<double> precise_;
  Pool pool_;
  std::optional<Graph> allocating_;
  Graph rotating_;
  std::vector<double> reference_;
};

}  // namespace

extern constinit const Pair graph_memory_nodes{
    .teaches = "code that allocates can be captured: allocations and releases become nodes of the graph",
    .lesson = "memory_nodes",
    .make = make<GraphMemoryNodes>,
    .baseline = {.name = "allocate_in_stream", .run = call<&GraphMemoryNodes::allocate_in_stream>},
    .optimized = variants({{.name = "memory_nodes",
                            .run = call<&GraphMemoryNodes::memory_nodes>,
                            .prepare = call<&GraphMemoryNodes::capture_allocating>,
                            .same_bits_as = "allocate_in_stream"},
                           {.name = "planned_buffers",
                            .run = call<&GraphMemoryNodes::planned_buffers>,
                            .prepare = call<&GraphMemoryNodes::capture_rotating>,
                            .same_bits_as = "allocate_in_stream"}}),
    .controls = variants({{.name = "stream_preallocated",
                           .run = call<&GraphMemoryNodes::stream_preallocated>,
                           .same_bits_as = "allocate_in_stream"}}),
    .bound = Bound::latency,
    // 128 dependent sums of five terms whose weights add up to one: 3 sqrt(128 * 3) roundings of 2.4e-8.
    .tolerance = within(1.5e-6),
    .needs = {.attributes = {cudaDevAttrMemoryPoolsSupported}},
    .cache = Cache::hot,
    .start = Start::immediate,
    .sizes = sizes({{.name = "image", .full = 512, .most = 4096}}),
    .sweep = cases({{"image_128", "image=128"}, {"image_512", "image=512"}, {"image_2048", "image=2048"}}),
    .edges = cases({{"one_pixel", "image=1"}, {"ragged", "image=77"}}),
};

}  // namespace aisp::ch12
