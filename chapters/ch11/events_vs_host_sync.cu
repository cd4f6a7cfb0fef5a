// SPDX-License-Identifier: Apache-2.0
// A pipeline of two stages over 200 small batches: features on one stream, scores on the other, two buffers between them. When
// the host orders the stages, they overlap all the same, but each of its waits empties the GPU, and it idles until the next two
// kernels are launched. Two events a batch (data are ready, a buffer is free) order them on the device. The floor is a chain of
// dependent integer instructions: 200 batches of so many rounds, fourteen cycles each.
#include <aisp/device_attribute.hpp>
#include <aisp/graph.hpp>
#include <aisp/pair.hpp>

#include <array>

namespace aisp::ch11 {
namespace {

constexpr unsigned blocks = 64, threads = 256, batch = blocks * threads;
constexpr unsigned buffers = 2;

// Stands for a small network: the time of a kernel is the length of this chain.
__host__ __device__ inline std::uint32_t mixed(std::uint32_t x, unsigned rounds) {
  for (unsigned round = 0; round < rounds; ++round) {
    x = x * 1664525u + 1013904223u;
    x ^= x >> 15;
  }
  return x;
}

__global__ __launch_bounds__(threads) void feature_kernel(const std::uint32_t* in, std::uint32_t* features, unsigned rounds) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  features[i] = mixed(in[i], rounds);
}

// A score is made of its own feature and of one of another block's.
__host__ __device__ constexpr unsigned other_of(unsigned i) { return (i + batch / 2 + 1) % batch; }
__global__ __launch_bounds__(threads) void score_kernel(const std::uint32_t* features, std::uint32_t* scores, unsigned rounds) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  scores[i] = mixed(features[i] + 3 * features[other_of(i)], rounds);
}

class EventsVsHostSync final : public Workload {
 public:
  explicit EventsVsHostSync(Setup& setup)
      : batches_{setup.scaled(200)},
        rounds_{static_cast<unsigned>(setup.size("rounds"))},
        in_{setup.input<std::uint32_t>(batches_ * batch, integers(0, 0xFFFFFFFF), {.name = "batches"})},
        scores_{setup.output<std::uint32_t>(batches_ * batch, {.name = "scores"})},
        features_{setup.scratch<std::uint32_t>(std::size_t{buffers} * batch, {.name = "features"})},
        first_stage_{setup.stream()},
        second_stage_{setup.stream()},
        forked_{setup.event()},
        joined_{setup.event()} {
    for (auto* events : {&ready_, &free_})
      for (cudaEvent_t& event : *events) event = setup.event();
  }

  Cost cost() const override {
    constexpr double cycles_of_a_round = 14;
    const double hertz = 1e3 * device_attribute(cudaDevAttrClockRate);
    return {.seconds = static_cast<double>(batches_) * rounds_ * cycles_of_a_round / hertz};
  }
  double expected(std::size_t index) const override {
    const std::size_t first = index / batch * batch;
    const auto i = static_cast<unsigned>(index % batch);
    const std::uint32_t own = mixed(in_.host(index), rounds_), other = mixed(in_.host(first + other_of(i)), rounds_);
    return mixed(own + 3 * other, rounds_);
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("batches", static_cast<double>(batches_), "batches/s");
  }

  // The scores of a batch and the features of the next are launched side by side; then the host waits for both.
  void host_sync(Launch& launch) {
    fork(launch.stream);
    for (std::size_t b = 0; b < batches_; ++b) {
      make_features(b, first_stage_);
      if (b > 0) make_scores(b - 1, second_stage_);
      check(cudaStreamSynchronize(first_stage_));
      check(cudaStreamSynchronize(second_stage_));
    }
    make_scores(batches_ - 1, second_stage_);
    join(launch.stream);
  }

  void event_wait(Launch& launch) { queue_pipeline(launch.stream); }
  void capture(Launch& launch) {
    queue_pipeline(launch.stream);  // code is loaded at its first launch, not while a capture is under way
    graph_.capture(launch.stream, [this](cudaStream_t stream) { queue_pipeline(stream); });
  }
  void event_wait_graph(Launch& launch) { graph_.launch(launch.stream); }

  void one_stream(Launch& launch) {
    for (std::size_t b = 0; b < batches_; ++b) {
      make_features(b, launch.stream);
      make_scores(b, launch.stream);
    }
  }
  void sync_each_stage(Launch& launch) {
    for (std::size_t b = 0; b < batches_; ++b) {
      make_features(b, launch.stream);
      check(cudaStreamSynchronize(launch.stream));
      make_scores(b, launch.stream);
      check(cudaStreamSynchronize(launch.stream));
    }
  }

 private:
  void fork(cudaStream_t stream) {
    check(cudaEventRecord(forked_, stream));
    check(cudaStreamWaitEvent(first_stage_, forked_));
    check(cudaStreamWaitEvent(second_stage_, forked_));
  }
  // The last scores wait for the last features, so that the second stage's stream is done last.
  void join(cudaStream_t stream) {
    check(cudaEventRecord(joined_, second_stage_));
    check(cudaStreamWaitEvent(stream, joined_));
  }
  void queue_pipeline(cudaStream_t stream) {
    fork(stream);
    for (std::size_t b = 0; b < batches_; ++b) {
      const std::size_t buffer = b % buffers;
      if (b >= buffers) check(cudaStreamWaitEvent(first_stage_, free_[buffer]));
      make_features(b, first_stage_);
      check(cudaEventRecord(ready_[buffer], first_stage_));
      check(cudaStreamWaitEvent(second_stage_, ready_[buffer]));
      make_scores(b, second_stage_);
      check(cudaEventRecord(free_[buffer], second_stage_));
    }
    join(stream);
  }
  std::uint32_t* features(std::size_t b) const { return features_ + b % buffers * batch; }
  void make_features(std::size_t b, cudaStream_t stream) const {
    launch_kernel(stream, feature_kernel, {blocks, threads}, in_ + b * batch, features(b), rounds_);
  }
  void make_scores(std::size_t b, cudaStream_t stream) const {
    launch_kernel(stream, score_kernel, {blocks, threads}, features(b), scores_ + b * batch, rounds_);
  }

  std::size_t batches_;
  unsigned rounds_;
  Input<std::uint32_t> in_;
  Output<std::uint32_t> scores_;
  Scratch<std::uint32_t> features_;
  cudaStream_t first_stage_, second_stage_;
  cudaEvent_t forked_, joined_;
  std::array<cudaEvent_t, buffers> ready_{}, free_{};
  Graph graph_;
};

}  // namespace

extern constinit const Pair events_vs_host_sync{
    .teaches = "two stages overlap when the host orders them, but each of its waits empties the GPU; an event orders them there",
    .lesson = "event_wait",
    .make = make<EventsVsHostSync>,
    .baseline = {.name = "host_sync", .run = call<&EventsVsHostSync::host_sync>},
    .optimized = variants({{.name = "event_wait", .run = call<&EventsVsHostSync::event_wait>},
                           {.name = "event_wait_graph",
                            .run = call<&EventsVsHostSync::event_wait_graph>,
                            .prepare = call<&EventsVsHostSync::capture>}}),
    .controls = variants({{.name = "one_stream", .run = call<&EventsVsHostSync::one_stream>},
                          {.name = "sync_each_stage", .run = call<&EventsVsHostSync::sync_each_stage>}}),
    .bound = Bound::latency,
    .tolerance = exact,
    .cache = Cache::hot,
    .start = Start::immediate,  // waits of the host are the subject
    .timeline = true,
    .sizes = sizes({{.name = "rounds", .full = 2500, .most = 20000, .scales = false}}),
    .sweep = cases({{"us_2", "rounds=50"},
                    {"us_5", "rounds=400"},
                    {"us_10", "rounds=1100"},
                    {"us_20", "rounds=2500"},
                    {"us_50", "rounds=6600"}}),
    .edges = cases({{"no_work", "rounds=1"}}),
};

}  // namespace aisp::ch11
