// SPDX-License-Identifier: Apache-2.0
// A step of 300 operations of about 10 us, each of which is to be timed. A host clock needs a wait before and after each, so
// nothing is queued ahead and the kernel's launch is part of its time. Events in the stream are read when the step is over; one
// between two neighbours ends the first and starts the second; and kernels that note the GPU's clock need no command of their
// own.
#include <aisp/device_attribute.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace aisp::ch13 {
namespace {

constexpr unsigned threads = 256, blocks = 132, words = blocks * threads;
constexpr std::size_t operations = 300;
// In each group of 50 operations one is short, one long, one has a single block, and two run side by side.
constexpr std::size_t group = 50, short_place = 10, long_place = 20, single_place = 30, beside_place = 40;

// The first and the last time at which a block of the operation ran.
struct Stamp {
  unsigned long long begin, end;  // ns
};

__device__ unsigned long long clock_ns() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)::"memory");
  return now;
}

// Stands for an operation: its time is the length of this chain.
__host__ __device__ inline std::uint32_t mixed(std::uint32_t x, unsigned rounds) {
  for (unsigned round = 0; round < rounds; ++round) {
    x = x * 1664525u + 1013904223u;
    x ^= x >> 15;
  }
  return x;
}

// A word and its neighbour in another block.
__host__ __device__ constexpr unsigned other_of(unsigned i, unsigned count) { return (i + count / 2 + 1) % count; }
template <bool stamped>
__global__ __launch_bounds__(threads) void operation_kernel(const std::uint32_t* in, std::uint32_t* out, unsigned rounds,
                                                            Stamp* stamp) {
  const unsigned i = blockIdx.x * threads + threadIdx.x, count = gridDim.x * threads;
  if (stamped && threadIdx.x == 0) atomicMin(&stamp->begin, clock_ns());
  out[i] = mixed(in[i] + 3 * in[other_of(i, count)], rounds);
  if constexpr (stamped) {
    __syncthreads();
    if (threadIdx.x == 0) atomicMax(&stamp->end, clock_ns());
  }
}

// To memory of the host.
__global__ void collect_kernel(const Stamp* stamps, Stamp* collected) { collected[threadIdx.x] = stamps[threadIdx.x]; }
__global__ void clear_kernel(Stamp* stamps) { stamps[threadIdx.x] = {~0ull, 0}; }

// The smallest step that the clock makes.
__global__ void resolution_kernel(unsigned long long* ns) {
  unsigned long long least = ~0ull, before = clock_ns();
  for (int steps = 0; steps < 100;) {
    const unsigned long long now = clock_ns();
    if (now == before) continue;
    least = min(least, now - before);
    before = now;
    ++steps;
  }
  *ns = least;
}

class TimingEvents {
 public:
  explicit TimingEvents(std::size_t count) : events_(count) {
    for (cudaEvent_t& event : events_) check(cudaEventCreate(&event));
  }
  ~TimingEvents() {
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  TimingEvents(const TimingEvents&) = delete;
  TimingEvents& operator=(const TimingEvents&) = delete;

  cudaEvent_t operator[](std::size_t i) const { return events_[i]; }
  double us_between(std::size_t first, std::size_t second) const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, events_[first], events_[second]));
    return static_cast<double>(ms) * 1e3;
  }

 private:
  std::vector<cudaEvent_t> events_;
};

// An operation, and where its results begin among all.
struct Operation {
  unsigned rounds = 0, grid = blocks;
  std::size_t first_word = 0;
  bool has_neighbour = false;  // its successor runs beside it, on another stream
  bool is_neighbour = false;
};

class ProfilingOverhead final : public Workload {
 public:
  explicit ProfilingOverhead(Setup& setup)
      : rounds_{static_cast<unsigned>(setup.size("rounds"))},
        result_words_{lay_out()},
        in_{setup.input<std::uint32_t>(words, integers(0, 0xFFFFFFFF), {.name = "inputs"})},
        out_{setup.output<std::uint32_t>(result_words_, {.name = "results"})},
        stamps_{setup.scratch<Stamp>(operations, {.name = "stamps"})},
        stamps_on_host_{setup.scratch<Stamp>(operations, {.name = "stamps on the host", .memory = Memory::pinned})},
        resolution_{setup.scratch<unsigned long long>(1, {.name = "resolution", .memory = Memory::pinned})},
        side_{setup.stream()},
        forked_{setup.event()},
        joined_{setup.event()},
        events_{2 * operations},
        team_{setup.threads(setup.cpus(), false)} {}

  // The chains of the operations that follow one another.
  Cost cost() const override {
    constexpr double cycles_of_a_round = 14;
    const double hertz = 1e3 * device_attribute(cudaDevAttrClockRate);
    double all_rounds = 0;
    for (const Operation& operation : operation_)
      if (!operation.is_neighbour) all_rounds += operation.rounds;
    return {.seconds = all_rounds * cycles_of_a_round / hertz};
  }
  void compute_reference(Launch&) override {
    expected_.resize(result_words_);
    std::vector<std::uint32_t> input(words);
    for (std::size_t i = 0; i < words; ++i) input[i] = in_.host(i);
    for (std::size_t o = 0; o < operations; ++o) {
      const std::uint32_t* const from = o == 0 ? input.data() : &expected_[operation_[source_of(o)].first_word];
      std::uint32_t* const to = &expected_[operation_[o].first_word];
      const unsigned count = operation_[o].grid * threads, rounds = operation_[o].rounds;
      team_.run([&](int worker) {
        const auto workers = static_cast<unsigned>(team_.size()), w = static_cast<unsigned>(worker);
        for (unsigned i = count * w / workers; i < count * (w + 1) / workers; ++i)
          to[i] = mixed(from[i] + 3 * from[other_of(i, count)], rounds);
      });
    }
  }
  double expected(std::size_t index) const override { return expected_[index]; }

  // The times that the last run reported.
  void validate(std::string_view variant) override {
    if (variant == "unmeasured") return;
    for (std::size_t o = 0; o < operations; ++o)
      if (!(times_us_[o] >= 0))
        throw std::runtime_error{"operation " + std::to_string(o) + " is said to take " + std::to_string(times_us_[o]) + " us"};
    constexpr unsigned noticeable = 1000;  // rounds; of shorter operations the launch may take longer than the chain
    if (rounds_ >= noticeable && !(times_us_[long_place] > times_us_[short_place]))
      throw std::runtime_error{"the longest operation is said to be shorter than the shortest"};
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    metrics.report_rate("steps", 1, "steps/s");
    if (variant == "unmeasured") return;
    std::array<double, operations> sorted = times_us_;
    std::nth_element(sorted.begin(), sorted.begin() + operations / 2, sorted.end());
    metrics.report("median_operation", sorted[operations / 2], "us", Metrics::Better::lower);
    metrics.report("short_operation", times_us_[short_place], "us", Metrics::Better::lower);
    if (variant == "device_clock")
      metrics.report("clock_resolution", static_cast<double>(*resolution_), "ns", Metrics::Better::lower);
  }

  void host_clock(Launch& launch) {
    std::chrono::steady_clock::time_point start;
    run_step<false>(
        launch,
        [&](std::size_t, cudaStream_t) {
          check(cudaDeviceSynchronize());
          start = std::chrono::steady_clock::now();
        },
        [&](std::size_t o, cudaStream_t) {
          check(cudaDeviceSynchronize());
          times_us_[o] = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
        });
  }
  void event_pool(Launch& launch) {
    run_step<false>(
        launch, [&](std::size_t o, cudaStream_t stream) { check(cudaEventRecord(events_[2 * o], stream)); },
        [&](std::size_t o, cudaStream_t stream) { check(cudaEventRecord(events_[2 * o + 1], stream)); });
    check(cudaStreamSynchronize(launch.stream));
    for (std::size_t o = 0; o < operations; ++o) times_us_[o] = events_.us_between(2 * o, 2 * o + 1);
  }
  // An operation begins when the one before it on its stream ends; where streams fork or join it has an event of its own.
  void shared_events(Launch& launch) {
    const auto begins_alone = [this](std::size_t o) {
      return o == 0 || operation_[o].is_neighbour || operation_[o - 1].is_neighbour;
    };
    run_step<false>(
        launch,
        [&](std::size_t o, cudaStream_t stream) {
          if (begins_alone(o)) check(cudaEventRecord(events_[2 * o], stream));
        },
        [&](std::size_t o, cudaStream_t stream) { check(cudaEventRecord(events_[2 * o + 1], stream)); });
    check(cudaStreamSynchronize(launch.stream));
    for (std::size_t o = 0; o < operations; ++o)
      times_us_[o] = events_.us_between(begins_alone(o) ? 2 * o : 2 * o - 1, 2 * o + 1);
  }
  void measure_resolution(Launch& launch) { launch(resolution_kernel, {1, 1}, resolution_); }
  void device_clock(Launch& launch) {
    launch(clear_kernel, {1, operations}, stamps_);
    run_step<true>(
        launch, [](std::size_t, cudaStream_t) {}, [](std::size_t, cudaStream_t) {});
    launch(collect_kernel, {1, operations}, stamps_, stamps_on_host_);
    check(cudaStreamSynchronize(launch.stream));
    for (std::size_t o = 0; o < operations; ++o)
      times_us_[o] = static_cast<double>(stamps_on_host_[o].end - stamps_on_host_[o].begin) * 1e-3;
  }
  void unmeasured(Launch& launch) {
    run_step<false>(
        launch, [](std::size_t, cudaStream_t) {}, [](std::size_t, cudaStream_t) {});
  }

 private:
  // Sets up the operations; returns how many words all their results have.
  std::size_t lay_out() {
    std::size_t next = 0;
    for (std::size_t o = 0; o < operations; ++o) {
      const std::size_t place = o % group;
      Operation& operation = operation_[o];
      operation.rounds = place == short_place ? rounds_ / 16 : place == long_place ? 11 * rounds_ : rounds_;
      operation.grid = place == single_place ? 1 : blocks;
      operation.has_neighbour = place == beside_place;
      operation.is_neighbour = place == beside_place + 1;
      operation.first_word = next;
      next += std::size_t{operation.grid} * threads;
    }
    return next;
  }
  // Whose results an operation reads: of the last one before it that is of full size, and not its neighbour.
  std::size_t source_of(std::size_t o) const {
    return operation_[o].is_neighbour || operation_[o - 1].grid < blocks ? o - 2 : o - 1;
  }

  template <bool stamped, class Begin, class End>
  void run_step(Launch& launch, const Begin& begin, const End& end) {
    for (std::size_t o = 0; o < operations; ++o) {
      const Operation& operation = operation_[o];
      if (operation.has_neighbour) check(cudaEventRecord(forked_, launch.stream));
      if (operation.is_neighbour) check(cudaStreamWaitEvent(side_, forked_));
      const cudaStream_t stream = operation.is_neighbour ? side_ : launch.stream;
      const std::uint32_t* const from = o == 0 ? in_.get() : out_ + operation_[source_of(o)].first_word;
      begin(o, stream);
      launch_kernel(stream, operation_kernel<stamped>, {operation.grid, threads}, from, out_ + operation.first_word,
                    operation.rounds, stamps_ + o);
      end(o, stream);
      if (!operation.is_neighbour) continue;
      check(cudaEventRecord(joined_, side_));
      check(cudaStreamWaitEvent(launch.stream, joined_));
    }
  }

  unsigned rounds_;
  std::array<Operation, operations> operation_{};
  std::size_t result_words_;
  Input<std::uint32_t> in_;
  Output<std::uint32_t> out_;
  Scratch<Stamp> stamps_, stamps_on_host_;
  Scratch<unsigned long long> resolution_;
  cudaStream_t side_;
  cudaEvent_t forked_, joined_;
  TimingEvents events_;
  ThreadTeam& team_;
  std::array<double, operations> times_us_{};
  std::vector<std::uint32_t> expected_;
};

}  // namespace

extern constinit const Pair profiling_overhead{
    .teaches =
        "a host clock around each operation needs a wait, which removes all overlap and puts the launch into the time; events "
        "in the stream do neither",
    .lesson = "event_pool",
    .make = make<ProfilingOverhead>,
    .baseline = {.name = "host_clock", .run = call<&ProfilingOverhead::host_clock>},
    .optimized =
        variants({{.name = "event_pool", .run = call<&ProfilingOverhead::event_pool>, .same_bits_as = "host_clock"},
                  {.name = "shared_events", .run = call<&ProfilingOverhead::shared_events>, .same_bits_as = "host_clock"},
                  {.name = "device_clock",
                   .run = call<&ProfilingOverhead::device_clock>,
                   .prepare = call<&ProfilingOverhead::measure_resolution>,
                   .same_bits_as = "host_clock"}}),
    .controls = variants({{.name = "unmeasured", .run = call<&ProfilingOverhead::unmeasured>, .same_bits_as = "host_clock"}}),
    .bound = Bound::latency,
    .tolerance = exact,
    .cache = Cache::hot,
    .start = Start::immediate,  // waits of the host are the subject
    .timeline = true,
    .sizes = sizes({{.name = "rounds", .full = 1100, .most = 20000, .scales = false}}),
    .sweep = cases({{"us_2", "rounds=50"},
                    {"us_5", "rounds=400"},
                    {"us_10", "rounds=1100"},
                    {"us_20", "rounds=2500"},
                    {"us_50", "rounds=6600"},
                    {"us_100", "rounds=13000"}}),
    .edges = cases({{"no_work", "rounds=1"}}),
};

}  // namespace aisp::ch13
