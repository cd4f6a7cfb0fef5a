// SPDX-License-Identifier: Apache-2.0
#include <aisp/check.hpp>

#include <chrono>

#include "measure/gpu_kernels.hpp"
#include "measure/sample.hpp"
#include "measure/stopwatch.hpp"

namespace aisp::measure {
namespace {

// A GPU's clock is at its height after so much load.
constexpr std::chrono::duration<double> clock_rises_in{0.02};

class EventStopwatch final : public Stopwatch {
 public:
  EventStopwatch(pair::Session& session, const Conditions& conditions) : Stopwatch{session, conditions} {
    check(cudaEventCreate(&start_));
    check(cudaEventCreate(&end_));
    void* memory = nullptr;
    check(cudaMalloc(&memory, probe_words * sizeof(std::uint32_t)));
    probe_target_ = static_cast<std::uint32_t*>(memory);
    // Loads the code by a first launch, which waits for the GPU and so must not follow a closed gate.
    launch_probe(probe_target_, session_.launch().stream);
    session_.synchronize_all();
  }
  ~EventStopwatch() override {
    cudaEventDestroy(start_);
    cudaEventDestroy(end_);
    cudaFree(probe_target_);
  }

  using Stopwatch::time;
  Sample time(const Variant& variant, Capture& capture) override {
    Sample sample = time_alone(variant, capture);
    sample.metrics = executor_.report(variant);
    return sample;
  }

  // Times without asking for metrics.
  Sample time_alone(const Variant& variant, Capture& capture) { return sample_of(executor_.execute(variant, capture, frame())); }

  // Uses a released start: an immediate one would include the launch of the probe, which is no part of the stopwatch.
  double time_probe() override {
    return sample_of(executor_.execute([&] { launch_probe(probe_target_, session_.launch().stream); }, frame())).raw_ms;
  }

 private:
  Frame frame() {
    return {.begin =
                [this](cudaStream_t stream) {
                  check(cudaEventRecord(start_, stream));
                  session_.launch().start_recording();
                },
            .end = [this](cudaStream_t stream) { check(cudaEventRecord(end_, stream)); }};
  }

  Sample sample_of(const Executed& executed) {
    Sample sample{
        .host_ms = executed.host_ms, .run_ms = executed.run_ms, .early_ms = executed.early_ms, .late_ms = executed.late_ms};
    float elapsed_ms = 0;
    check(cudaEventElapsedTime(&elapsed_ms, start_, end_));
    sample.raw_ms = elapsed_ms;
    sample.marks = session_.launch().stop_recording(start_);
    return sample;
  }

  cudaEvent_t start_ = nullptr;
  cudaEvent_t end_ = nullptr;
  std::uint32_t* probe_target_ = nullptr;
};

}  // namespace

std::vector<double> event_times_ms(pair::Session& session, const Conditions& conditions, const Variant& variant, int runs,
                                   double longest_s) {
  using Seconds = std::chrono::duration<double>;
  using Clock = std::chrono::steady_clock;
  EventStopwatch stopwatch{session, conditions};
  for (const auto start = Clock::now(); Seconds{Clock::now() - start} < clock_rises_in;) stopwatch.time_probe();
  stopwatch.executor().load(variant);
  std::vector<double> times_ms;
  const auto start = Clock::now();
  while (static_cast<int>(times_ms.size()) < runs && (times_ms.empty() || Seconds{Clock::now() - start}.count() < longest_s)) {
    Capture capture{.digest = false};
    times_ms.push_back(stopwatch.time_alone(variant, capture).raw_ms);
  }
  return times_ms;
}

std::unique_ptr<Stopwatch> make_event_stopwatch(pair::Session& session, const Conditions& conditions) {
  return std::make_unique<EventStopwatch>(session, conditions);
}

}  // namespace aisp::measure
