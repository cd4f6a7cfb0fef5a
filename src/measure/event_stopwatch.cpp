// SPDX-License-Identifier: Apache-2.0
#include <aisp/check.hpp>

#include <chrono>
#include <functional>
#include <string>

#include "measure/cold_cache.hpp"
#include "measure/gate.hpp"
#include "measure/gpu_kernels.hpp"
#include "measure/metrics.hpp"
#include "measure/stopwatch.hpp"

namespace aisp::measure {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

class EventStopwatch final : public Stopwatch {
 public:
  EventStopwatch(pair::Session& session, const StopwatchOptions& options) : session_{session}, options_{options}, cold_{session} {
    check(cudaEventCreate(&start_));
    check(cudaEventCreate(&end_));
    // Code is loaded at its first launch, which waits for the GPU: not behind a closed gate.
    cold_.evict();
    void* memory = nullptr;
    check(cudaMalloc(&memory, probe_words * sizeof(std::uint32_t)));
    probe_target_ = static_cast<std::uint32_t*>(memory);
    launch_probe(probe_target_, session_.launch().stream);
    session_.synchronize_all();
  }
  ~EventStopwatch() override {
    cudaEventDestroy(start_);
    cudaEventDestroy(end_);
    cudaFree(probe_target_);
  }

  Sample time(const Variant& variant) override {
    session_.before_sample(variant);
    const auto work = [&] { variant.run(session_.workload(), session_.launch()); };
    Sample sample = time_work(work, options_.start);
    if (gate_.forced_open()) {  // a variant's own first launch may have loaded code
      session_.before_sample(variant);
      sample = time_work(work, options_.start);
      if (gate_.forced_open()) throw WaitsForGpu{std::string{variant.name}};
    }
    sample.metrics = collect_metrics(session_.workload(), variant.name);
    return sample;
  }

  // Always from a released start: an immediate one would hold the launch of the probe too, which is no part of the stopwatch.
  double time_probe() override {
    return time_work([&] { launch_probe(probe_target_, session_.launch().stream); }, Start::released).raw_ms;
  }

 private:
  Sample time_work(const std::function<void()>& work, Start start) {
    pair::LaunchState& launch = session_.launch();
    if (options_.cache == Cache::cold) cold_.evict();
    if (start == Start::immediate) session_.synchronize_all();
    else gate_.close(launch.stream);
    check(cudaEventRecord(start_, launch.stream));
    launch.start_recording();
    Clock::time_point host_start = Clock::now();
    session_.fork();
    work();
    session_.join();
    check(cudaEventRecord(end_, launch.stream));
    check(cudaGetLastError());
    if (start == Start::released) {
      host_start = Clock::now();
      gate_.open();
    }
    check(cudaEventSynchronize(end_));
    Sample sample;
    sample.host_ms = milliseconds_since(host_start);
    const Clock::time_point finished = Clock::now();
    session_.synchronize_all();
    sample.late_ms = milliseconds_since(finished);
    float elapsed_ms = 0;
    check(cudaEventElapsedTime(&elapsed_ms, start_, end_));
    sample.raw_ms = elapsed_ms;
    sample.marks = launch.stop_recording(start_);
    return sample;
  }

  pair::Session& session_;
  StopwatchOptions options_;
  ColdCache cold_;
  Gate gate_;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t end_ = nullptr;
  std::uint32_t* probe_target_ = nullptr;
};

}  // namespace

std::unique_ptr<Stopwatch> make_event_stopwatch(pair::Session& session, const StopwatchOptions& options) {
  return std::make_unique<EventStopwatch>(session, options);
}

}  // namespace aisp::measure
