// SPDX-License-Identifier: Apache-2.0
// Sixteen requests on four streams, each with buffers of its own: three allocations, three kernels on 16 SMs, three frees.
// cudaMalloc and cudaFree go to the driver, and cudaFree waits for the whole device, so requests on other streams stop as well.
// Stream-ordered allocation takes memory from a pool that keeps it, and frees in the order of the stream: neither cost remains.
// The first use of a pool still pays the driver: control fresh_pool, whose pools are emptied before each run.
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace aisp::ch11 {
namespace {

constexpr unsigned blocks = 16, threads = 1024, in_flight = 4;  // an SM moves about 97 GB/s: 16 of them half of what HBM can
constexpr std::size_t requests = 16, streams = 4;
constexpr std::uint32_t multiplier = 1664525, increment = 1013904223;

// Calls work(i) for each 16-byte word of an array; the loads of `in_flight` calls are under way together.
template <class Load, class Use>
__device__ void for_each_word(std::size_t words, const Load& load, const Use& use) {
  const std::size_t stride = std::size_t{gridDim.x} * threads;
  for (std::size_t first = std::size_t{blockIdx.x} * threads + threadIdx.x; first < words; first += stride * in_flight) {
    uint4 loaded[in_flight];
#pragma unroll
    for (unsigned k = 0; k < in_flight; ++k)
      if (first + k * stride < words) loaded[k] = load(first + k * stride);
#pragma unroll
    for (unsigned k = 0; k < in_flight; ++k)
      if (first + k * stride < words) use(first + k * stride, loaded[k]);
  }
}

__device__ std::uint32_t folded(uint4 v) { return v.x ^ v.y * 3 ^ v.z * 5 ^ v.w * 7; }

// Four numbers of each.
__global__ __launch_bounds__(threads) void expand_kernel(const uint4* in, uint4* wide, std::size_t words) {
  for_each_word(
      words, [&](std::size_t i) { return in[i]; },
      [&](std::size_t i, uint4 v) {
        const std::uint32_t from[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (unsigned k = 0; k < 4; ++k) wide[k * words + i] = make_uint4(from[k], from[k] + 1, from[k] + 2, from[k] + 3);
      });
}
__global__ __launch_bounds__(threads) void map_kernel(const uint4* in, uint4* out, std::size_t words) {
  for_each_word(
      words, [&](std::size_t i) { return in[i]; },
      [&](std::size_t i, uint4 v) {
        out[i] = make_uint4(v.x * multiplier + increment, v.y * multiplier + increment, v.z * multiplier + increment,
                            v.w * multiplier + increment);
      });
}
// One number of each four, and the sum of all.
__global__ __launch_bounds__(threads) void fold_kernel(const uint4* in, std::uint32_t* narrow, std::size_t words,
                                                       std::uint32_t* sum) {
  std::uint32_t of_thread = 0;
  for_each_word(
      words, [&](std::size_t i) { return in[i]; },
      [&](std::size_t i, uint4 v) {
        narrow[i] = folded(v);
        of_thread += folded(v);
      });
  const std::uint32_t of_warp = __reduce_add_sync(0xFFFFFFFF, of_thread);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, of_warp);
}

class Pool {
 public:
  explicit Pool(int gpu) {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, gpu};
    check(cudaMemPoolCreate(&pool_, &properties));
    std::uint64_t all = ~std::uint64_t{0};  // nothing goes back to the driver
    check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &all));
  }
  ~Pool() { cudaMemPoolDestroy(pool_); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  void* allocate(std::size_t bytes, cudaStream_t stream) const {
    void* memory = nullptr;
    check(cudaMallocFromPoolAsync(&memory, bytes, pool_, stream));
    return memory;
  }
  void empty() const { check(cudaMemPoolTrimTo(pool_, 0)); }
  std::uint64_t reserved_bytes() const {
    std::uint64_t bytes = 0;
    check(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &bytes));
    return bytes;
  }

 private:
  cudaMemPool_t pool_ = nullptr;
};

struct Buffers {
  void *expanded, *mapped, *folded;
};

class StreamOrdered final : public Workload {
 public:
  explicit StreamOrdered(Setup& setup)
      : input_bytes_{setup.size("kib") * 1024 / 4},
        in_{setup.input<std::uint32_t>(requests * input_bytes_ / 4, integers(0, 0xFFFFFFFF), {.name = "requests"})},
        sums_{setup.output<std::uint32_t>(requests, {.name = "sums"})},
        space_{setup.scratch<std::byte>(streams * request_bytes())},
        shared_pool_{setup.device_ordinal(0)},
        fresh_pool_{setup.device_ordinal(0)},
        own_pools_{Pool{setup.device_ordinal(0)}, Pool{setup.device_ordinal(0)}, Pool{setup.device_ordinal(0)},
                   Pool{setup.device_ordinal(0)}},
        team_{setup.threads(setup.cpus(), false)},
        forked_{setup.event()} {
    for (std::size_t s = 0; s < streams; ++s) streams_[s] = setup.stream(), done_[s] = setup.event();
  }

  // Each kernel reads the output of the one before.
  Cost cost() const override { return {.bytes = static_cast<double>(requests * (input_bytes_ * (1 + 4 + 4 + 4 + 4 + 1)))}; }

  void compute_reference(Launch&) override {
    const std::size_t numbers = input_bytes_ / 4;
    const auto workers = static_cast<std::size_t>(team_.size());
    std::vector<std::array<std::uint32_t, requests>> parts(workers);
    team_.run([&](int worker) {
      const auto w = static_cast<std::size_t>(worker);
      for (std::size_t r = 0; r < requests; ++r) {
        std::uint32_t sum = 0;
        for (std::size_t i = numbers * w / workers; i < numbers * (w + 1) / workers; ++i) {
          const std::uint32_t first = in_.host(r * numbers + i);
          const auto at = [&](std::uint32_t k) { return (first + k) * multiplier + increment; };
          sum += at(0) ^ at(1) * 3 ^ at(2) * 5 ^ at(3) * 7;
        }
        parts[w][r] = sum;
      }
    });
    expected_.fill(0);
    for (const auto& part : parts)
      for (std::size_t r = 0; r < requests; ++r) expected_[r] += part[r];
  }
  double expected(std::size_t index) const override { return expected_[index]; }

  void metrics(std::string_view variant, Metrics& metrics) override {
    std::uint64_t bytes = 0;
    if (variant == "malloc_async") bytes = shared_pool_.reserved_bytes();
    else if (variant == "fresh_pool") bytes = fresh_pool_.reserved_bytes();
    else if (variant == "malloc_async_per_stream")
      for (const Pool& pool : own_pools_) bytes += pool.reserved_bytes();
    else if (variant == "preallocated") bytes = space_.bytes();
    else bytes = (variant == "free_at_end" ? requests : 1) * request_bytes();
    metrics.report("reserved", static_cast<double>(bytes) / (1 << 20), "MiB", Metrics::Better::lower);
    metrics.report_rate("requests", requests, "requests/s");
  }

  void malloc_free(Launch& launch) {
    on_streams(launch, [this](std::size_t, cudaStream_t stream, std::size_t request) {
      const Buffers buffers = driver_buffers();
      queue(buffers, stream, request);
      release(buffers);
    });
  }
  void free_at_end(Launch& launch) {
    std::array<Buffers, requests> all{};
    on_streams(launch, [&](std::size_t, cudaStream_t stream, std::size_t request) {
      all[request] = driver_buffers();
      queue(all[request], stream, request);
    });
    for (const Buffers& buffers : all) release(buffers);
  }
  void malloc_async(Launch& launch) {
    from_pools(launch, [this](std::size_t) -> const Pool& { return shared_pool_; });
  }
  void malloc_async_per_stream(Launch& launch) {
    from_pools(launch, [this](std::size_t s) -> const Pool& { return own_pools_[s]; });
  }
  void empty_pool(Launch&) { fresh_pool_.empty(); }
  void fresh_pool(Launch& launch) {
    from_pools(launch, [this](std::size_t) -> const Pool& { return fresh_pool_; });
  }
  void preallocated(Launch& launch) {
    on_streams(launch, [this](std::size_t s, cudaStream_t stream, std::size_t request) {
      std::byte* const first = space_ + s * request_bytes();
      queue({first, first + 4 * input_bytes_, first + 8 * input_bytes_}, stream, request);
    });
  }

 private:
  std::size_t request_bytes() const { return input_bytes_ * (4 + 4 + 1); }

  template <class Serve>
  void on_streams(Launch& launch, const Serve& serve) {
    check(cudaMemsetAsync(sums_, 0, sums_.bytes(), launch.stream));
    check(cudaEventRecord(forked_, launch.stream));
    for (const cudaStream_t stream : streams_) check(cudaStreamWaitEvent(stream, forked_));
    for (std::size_t request = 0; request < requests; ++request) serve(request % streams, streams_[request % streams], request);
    for (std::size_t s = 0; s < streams; ++s) {
      check(cudaEventRecord(done_[s], streams_[s]));
      check(cudaStreamWaitEvent(launch.stream, done_[s]));
    }
  }
  template <class PoolOf>
  void from_pools(Launch& launch, const PoolOf& pool_of) {
    on_streams(launch, [&](std::size_t s, cudaStream_t stream, std::size_t request) {
      const Pool& pool = pool_of(s);
      const Buffers buffers{pool.allocate(4 * input_bytes_, stream), pool.allocate(4 * input_bytes_, stream),
                            pool.allocate(input_bytes_, stream)};
      queue(buffers, stream, request);
      for (void* const memory : {buffers.expanded, buffers.mapped, buffers.folded}) check(cudaFreeAsync(memory, stream));
    });
  }
  Buffers driver_buffers() const {
    Buffers buffers{};
    check(cudaMalloc(&buffers.expanded, 4 * input_bytes_));
    check(cudaMalloc(&buffers.mapped, 4 * input_bytes_));
    check(cudaMalloc(&buffers.folded, input_bytes_));
    return buffers;
  }
  static void release(const Buffers& buffers) {
    for (void* const memory : {buffers.expanded, buffers.mapped, buffers.folded}) check(cudaFree(memory));
  }
  void queue(const Buffers& buffers, cudaStream_t stream, std::size_t request) const {
    const std::size_t words = input_bytes_ / sizeof(uint4);
    const auto* const in = reinterpret_cast<const uint4*>(in_.get()) + request * words;
    auto *const expanded = static_cast<uint4*>(buffers.expanded), *const mapped = static_cast<uint4*>(buffers.mapped);
    launch_kernel(stream, expand_kernel, {blocks, threads}, in, expanded, words);
    launch_kernel(stream, map_kernel, {blocks, threads}, expanded, mapped, 4 * words);
    launch_kernel(stream, fold_kernel, {blocks, threads}, mapped, static_cast<std::uint32_t*>(buffers.folded), 4 * words,
                  sums_ + request);
  }

  std::size_t input_bytes_;
  Input<std::uint32_t> in_;
  Output<std::uint32_t> sums_;
  Scratch<std::byte> space_;
  Pool shared_pool_, fresh_pool_;
  std::array<Pool, streams> own_pools_;
  ThreadTeam& team_;
  cudaEvent_t forked_;
  std::array<cudaStream_t, streams> streams_{};
  std::array<cudaEvent_t, streams> done_{};
  std::array<std::uint32_t, requests> expected_{};
};

}  // namespace

extern constinit const Pair stream_ordered{
    .teaches =
        "cudaMalloc and cudaFree go to the driver, and cudaFree waits for the device; stream-ordered allocation does neither",
    .lesson = "malloc_async",
    .make = make<StreamOrdered>,
    .baseline = {.name = "malloc_free", .run = call<&StreamOrdered::malloc_free>},
    .optimized = variants({{.name = "free_at_end", .run = call<&StreamOrdered::free_at_end>},
                           {.name = "malloc_async", .run = call<&StreamOrdered::malloc_async>},
                           {.name = "malloc_async_per_stream", .run = call<&StreamOrdered::malloc_async_per_stream>}}),
    .controls =
        variants({{.name = "preallocated", .run = call<&StreamOrdered::preallocated>},
                  {.name = "fresh_pool", .run = call<&StreamOrdered::fresh_pool>, .reset = call<&StreamOrdered::empty_pool>}}),
    .bound = Bound::latency,
    .tolerance = exact,
    .needs = {.attributes = {cudaDevAttrMemoryPoolsSupported}},
    .start = Start::immediate,  // allocation is a call of the host
    .timeline = true,
    .sizes = sizes({{.name = "kib", .full = 65536, .multiple = 64, .most = 262144}}),
    .sweep = cases({{"request_1_mib", "kib=448"},
                    {"request_16_mib", "kib=7296"},
                    {"request_144_mib", "kib=65536"},
                    {"request_512_mib", "kib=233024"}}),
    .edges = cases({{"small", "kib=64"}}),
};

}  // namespace aisp::ch11
