// SPDX-License-Identifier: Apache-2.0
// Photons walk at random through a slab until they are absorbed, each as many steps as chance has it. With a thread for each
// photon a warp lasts as long as the longest of its 32 walks, while the lanes whose photons are gone do nothing. Persistent warps
// whose idle lanes fetch the next photons from a queue, a counter, stay nearly full until the queue is empty.
#include <aisp/device/reduce.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

namespace aisp::ch12 {
namespace {

constexpr int threads = 256, warps = threads / device::warp_size;
constexpr int steps_between_packings = 16, steps_between_looks = 4;
constexpr float thickness = 32;  // of the slab, in mean free paths; its faces are mirrors

struct Rules {
  float2 source;  // where all walks begin, on a face of the slab
  uint2 key;      // of all random numbers
  unsigned photons;
  std::uint32_t absorb_below;  // of 2^32: a step's end absorbs with this probability
};

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011).
AISP_HOST_DEVICE inline uint4 philox(uint4 counter, uint2 key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter.x, b = std::uint64_t{0xCD9E8D57} * counter.z;
    counter = {static_cast<unsigned>(b >> 32) ^ counter.y ^ key.x, static_cast<unsigned>(b),
               static_cast<unsigned>(a >> 32) ^ counter.w ^ key.y, static_cast<unsigned>(a)};
    key.x += 0x9E3779B9, key.y += 0xBB67AE85;
  }
  return counter;
}

// The functions below are polynomials, and every product that meets a sum is an fmaf, so that the CPU's walks end at the same
// bits. -ln(bits / 2^32), never infinite:
AISP_HOST_DEVICE inline float minus_log(std::uint32_t bits) {
  const auto of_number = std::bit_cast<std::uint32_t>(static_cast<float>(bits >> 8 | 1));
  const float m = std::bit_cast<float>((of_number & 0x7FFFFF) | 0x3F800000) - 1;  // of the mantissa
  const int exponent = static_cast<int>(of_number >> 23) - 127;
  float log = fmaf(m, 0.0138744842f, -0.0655903071f);
  log = fmaf(m, log, 0.148294136f);
  log = fmaf(m, log, -0.234545201f);
  log = fmaf(m, log, 0.330975264f);
  log = fmaf(m, log, -0.499859005f);
  log = fmaf(m, log, 0.999998569f);
  return fmaf(static_cast<float>(24 - exponent), 0.693147182f, -m * log);
}
// Uniform from -1 to 1.
AISP_HOST_DEVICE inline float signed_unit(std::uint32_t bits) {
  return static_cast<float>(static_cast<std::int32_t>(bits)) * 0x1p-31f;
}

struct Photon {
  float x, y, z;
  unsigned id, steps;
};
AISP_HOST_DEVICE inline Photon start(unsigned id, const Rules& rules) { return {rules.source.x, rules.source.y, 0, id, 0}; }

// One free path and what happens at its end: true when the photon is absorbed there. Scattering is the same in all directions.
AISP_HOST_DEVICE inline bool step(Photon& p, const Rules& rules) {
  const uint4 random = philox({p.id, p.steps, 0, 0}, rules.key);
  ++p.steps;
  const float length = minus_log(random.x);
  const float cosine = signed_unit(random.y), half_turn = signed_unit(random.z), square = half_turn * half_turn;
  // Sine and cosine of half the azimuth, which is pi * half_turn.
  const float sine_of_half =
      half_turn * fmaf(square, fmaf(square, fmaf(square, -0.00437058602f, 0.0795000046f), -0.645925701f), 1.57079518f);
  const float cosine_of_half = fmaf(
      square, fmaf(square, fmaf(square, fmaf(square, 0.000858134474f, -0.0208105147f), 0.253650665f), -1.23369825f), 0.99999994f);
  const float across = length * sqrtf(fmaf(-cosine, cosine, 1));
  p.x = fmaf(across, fmaf(-2 * sine_of_half, sine_of_half, 1), p.x);
  p.y = fmaf(across, 2 * sine_of_half * cosine_of_half, p.y);
  p.z = fabsf(fmaf(length, cosine, p.z));
  if (p.z > thickness) p.z = 2 * thickness - p.z;
  return random.w < rules.absorb_below;
}

AISP_HOST_DEVICE inline float4 end_of(const Photon& p) { return {p.x, p.y, p.z, static_cast<float>(p.steps)}; }

// `order`: which photon each thread takes; none: that of its own number.
template <bool ordered>
__global__ __launch_bounds__(threads) void photon_per_thread_kernel(Rules rules, const unsigned* order, float4* ends,
                                                                    unsigned* warp_steps) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  Photon photon = start(i, rules);
  if (i < rules.photons) {
    if constexpr (ordered) photon.id = order[i];
    while (!step(photon, rules)) {
    }
    ends[photon.id] = end_of(photon);
  }
  const unsigned longest = __reduce_max_sync(device::whole_warp, photon.steps);
  if (threadIdx.x % device::warp_size == 0) warp_steps[i / device::warp_size] = longest;
}

// `wanted` lanes must be idle before they fetch: 1 keeps the warp fullest, 32 fetches for whole warps alone. The lanes are
// counted every few steps; those that are idle walk on for nothing, which costs less than to go around them.
__global__ __launch_bounds__(threads) void refill_kernel(Rules rules, unsigned* queue, int wanted, float4* ends,
                                                         unsigned* warp_steps) {
  const unsigned lane = threadIdx.x % device::warp_size, lanes_before = (1u << lane) - 1;
  bool walks = false, more = true;
  unsigned steps = 0;
  Photon photon{};
  while (true) {
    const unsigned idle = ~__ballot_sync(device::whole_warp, walks);
    if (more && __popc(idle) >= wanted) {
      unsigned first = 0;
      if (lane == 0) first = atomicAdd(queue, __popc(idle));
      first = __shfl_sync(device::whole_warp, first, 0);
      more = first + __popc(idle) < rules.photons;
      const unsigned id = first + __popc(idle & lanes_before);
      if (!walks && id < rules.photons) photon = start(id, rules), walks = true;
    }
    if (!more && !__any_sync(device::whole_warp, walks)) break;
#pragma unroll
    for (int k = 0; k < steps_between_looks; ++k, ++steps)
      if (step(photon, rules) && walks) ends[photon.id] = end_of(photon), walks = false;
  }
  if (lane == 0) warp_steps[(blockIdx.x * threads + threadIdx.x) / device::warp_size] = steps;
}

// Every few steps the photons that are left move to the first threads of the block, and the others take new ones: a warp is full
// or, when the queue is empty, without work.
__global__ __launch_bounds__(threads) void compaction_kernel(Rules rules, unsigned* queue, float4* ends, unsigned* warp_steps) {
  __shared__ Photon packed[threads];
  __shared__ unsigned of_warps[warps], first_of_block;
  const unsigned thread = threadIdx.x, warp = thread / device::warp_size, lane = thread % device::warp_size;
  bool walks = false;
  unsigned steps = 0;
  Photon photon{};
  while (true) {
    const unsigned walking = __ballot_sync(device::whole_warp, walks);
    if (lane == 0) of_warps[warp] = __popc(walking);
    __syncthreads();
    unsigned before = __popc(walking & ((1u << lane) - 1)), left = 0;
#pragma unroll
    for (unsigned w = 0; w < warps; ++w) {
      if (w < warp) before += of_warps[w];
      left += of_warps[w];
    }
    if (walks) packed[before] = photon;
    if (thread == 0) first_of_block = left < threads ? atomicAdd(queue, threads - left) : 0;
    __syncthreads();
    const unsigned id = first_of_block + thread - left;
    walks = thread < left || (left < threads && first_of_block < rules.photons && id < rules.photons);
    if (walks) photon = thread < left ? packed[thread] : start(id, rules);
    if (__syncthreads_or(walks) == 0) break;
    for (int k = 0; k < steps_between_packings && __any_sync(device::whole_warp, walks); k += steps_between_looks)
#pragma unroll
      for (int each = 0; each < steps_between_looks; ++each, ++steps)
        if (step(photon, rules) && walks) ends[photon.id] = end_of(photon), walks = false;
  }
  if (lane == 0) warp_steps[blockIdx.x * warps + warp] = steps;
}

class WorkQueue final : public Workload {
 public:
  explicit WorkQueue(Setup& setup)
      : photons_{setup.size("photons")},
        mean_{setup.size("mean")},
        wanted_{static_cast<int>(setup.size("idle"))},
        blocks_per_sm_{static_cast<unsigned>(setup.size("blocks"))},
        source_{setup.input<float>(2, uniform(-1, 1), {.name = "source", .memory = Memory::pinned})},
        key_{setup.input<unsigned>(2, integers(0, 0xFFFFFFFF), {.name = "key", .constant = true})},
        ends_{setup.output<float>(4 * photons_, {.name = "ends of walks"})},
        order_{setup.scratch<unsigned>(photons_, {.name = "photons by length"})},
        queue_{setup.scratch<unsigned>(1, {.name = "queue"})},
        warp_steps_{setup.scratch<unsigned>(std::max<std::size_t>(blocks() * warps, std::size_t{persistent_blocks()} * warps),
                                            {.name = "steps of warps"})} {}

  // Instructions of the baseline's loop at 90a, counted in its SASS; the walks' lengths are on average what the size says.
  Cost cost() const override {
    constexpr double slots_per_step = 98;
    const double steps = static_cast<double>(photons_) * static_cast<double>(mean_);
    return {.bytes = static_cast<double>(ends_.bytes()), .issue_slots = slots_per_step * steps / device::warp_size};
  }
  double expected(std::size_t i) const override {
    Photon photon = start(static_cast<unsigned>(i / 4), rules());
    while (!step(photon, rules())) {
    }
    const float4 end = end_of(photon);
    return i % 4 == 0 ? end.x : i % 4 == 1 ? end.y : i % 4 == 2 ? end.z : end.w;
  }

  void photon_per_thread(Launch& launch) {
    launch(photon_per_thread_kernel<false>, {blocks(), threads}, rules(), nullptr, ends(), warp_steps_);
  }
  void warp_refill(Launch& launch) { refill(launch, wanted_); }
  void persistent_whole_warps(Launch& launch) { refill(launch, device::warp_size); }
  void block_compaction(Launch& launch) {
    check(cudaMemsetAsync(queue_, 0, queue_.bytes(), launch.stream));
    launch(compaction_kernel, {persistent_blocks(), threads}, rules(), queue_, ends(), warp_steps_);
  }

  void order_photons(Launch& launch) {
    photon_per_thread(launch);
    std::vector<float4> ends(photons_);
    check(cudaMemcpyAsync(ends.data(), ends_, ends_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
    std::vector<unsigned> order(photons_);
    std::iota(order.begin(), order.end(), 0u);
    std::ranges::stable_sort(order, std::greater{}, [&](unsigned i) { return ends[i].w; });
    check(cudaMemcpy(order_, order.data(), order_.bytes(), cudaMemcpyHostToDevice));
  }
  void known_lengths(Launch& launch) {
    launch(photon_per_thread_kernel<true>, {blocks(), threads}, rules(), order_, ends(), warp_steps_);
  }

  void metrics(std::string_view variant, Metrics& metrics) override {
    if (total_steps_ == 0) {
      std::vector<float4> ends(photons_);
      check(cudaMemcpy(ends.data(), ends_, ends_.bytes(), cudaMemcpyDeviceToHost));
      for (const float4& end : ends) total_steps_ += double{end.w};
    }
    const bool persistent = variant != "photon_per_thread" && variant != "known_lengths";
    std::vector<unsigned> steps((persistent ? persistent_blocks() : blocks()) * std::size_t{warps});
    check(cudaMemcpy(steps.data(), warp_steps_, steps.size() * sizeof(unsigned), cudaMemcpyDeviceToHost));
    const double taken = std::accumulate(steps.begin(), steps.end(), 0.0);
    metrics.report("active_lanes", 100 * total_steps_ / (taken * device::warp_size), "%", Metrics::Better::higher);
    metrics.report_rate("rate", 1e-6 * static_cast<double>(photons_), "million photons/s");
  }

 private:
  unsigned blocks() const { return static_cast<unsigned>((photons_ + threads - 1) / threads); }
  unsigned persistent_blocks() const { return multiprocessors() * blocks_per_sm_; }
  float4* ends() const { return reinterpret_cast<float4*>(ends_.get()); }
  Rules rules() const {
    const auto below = mean_ == 1 ? 0xFFFFFFFFu : static_cast<std::uint32_t>((std::uint64_t{1} << 32) / mean_);
    const float* source = source_;
    return {{source[0], source[1]}, {key_.host(0), key_.host(1)}, static_cast<unsigned>(photons_), below};
  }
  void refill(Launch& launch, int wanted) {
    check(cudaMemsetAsync(queue_, 0, queue_.bytes(), launch.stream));
    launch(refill_kernel, {persistent_blocks(), threads}, rules(), queue_, wanted, ends(), warp_steps_);
  }

  std::size_t photons_, mean_;
  int wanted_;
  unsigned blocks_per_sm_;
  Input<float> source_;
  Input<unsigned> key_;
  Output<float> ends_;
  Scratch<unsigned> order_, queue_, warp_steps_;
  double total_steps_ = 0;
};

constexpr KernelLimits no_spills{.local_bytes = 0};

}  // namespace

extern constinit const Pair work_queue{
    .teaches = "a warp lasts as long as its longest lane, unless lanes that are done fetch new work from a queue",
    .lesson = "warp_refill",
    .make = make<WorkQueue>,
    .baseline = {.name = "photon_per_thread", .run = call<&WorkQueue::photon_per_thread>, .kernels = no_spills},
    .optimized = variants(
        {{.name = "warp_refill", .run = call<&WorkQueue::warp_refill>, .same_bits_as = "photon_per_thread", .kernels = no_spills},
         {.name = "block_compaction",
          .run = call<&WorkQueue::block_compaction>,
          .same_bits_as = "photon_per_thread",
          .kernels = no_spills}}),
    // The same persistent warps, which fetch when all of their lanes are done: what persistence is worth. And the baseline's
    // kernel on photons in the order of their lengths, which nobody knows before: what full warps are worth.
    .controls = variants(
        {{.name = "persistent_whole_warps", .run = call<&WorkQueue::persistent_whole_warps>, .same_bits_as = "photon_per_thread"},
         {.name = "known_lengths",
          .run = call<&WorkQueue::known_lengths>,
          .prepare = call<&WorkQueue::order_photons>,
          .same_bits_as = "photon_per_thread"}}),
    .bound = Bound::compute,
    .tolerance = exact,
    .sizes = sizes({{.name = "photons", .full = 4 << 20, .most = 16 << 20},
                    {.name = "mean", .full = 64, .most = 1024, .scales = false},
                    {.name = "idle", .full = 4, .most = 32, .scales = false},
                    {.name = "blocks", .full = 4, .most = 8, .scales = false}}),
    .sweep = cases({{"idle_1", "idle=1"},
                    {"idle_2", "idle=2"},
                    {"idle_4", "idle=4"},
                    {"idle_8", "idle=8"},
                    {"idle_16", "idle=16"},
                    {"idle_32", "idle=32"},
                    {"mean_4", "mean=4"},
                    {"mean_64", "mean=64"},
                    {"mean_1024", "mean=1024,photons=1048576"}}),
    .edges = cases({{"one_photon", "photons=1"}, {"odd", "photons=4999,mean=7"}, {"absorbed_at_once", "photons=1000,mean=1"}}),
};

}  // namespace aisp::ch12
