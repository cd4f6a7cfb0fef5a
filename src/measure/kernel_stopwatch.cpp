// SPDX-License-Identifier: Apache-2.0
#include <aisp/check.hpp>

#include <chrono>

#include "measure/cold_cache.hpp"
#include "measure/metrics.hpp"
#include "measure/stopwatch.hpp"
#include "profile/activity.hpp"

namespace aisp::measure {
namespace {

class KernelStopwatch final : public Stopwatch {
 public:
  KernelStopwatch(pair::Session& session, const StopwatchOptions& options)
      : session_{session}, options_{options}, cold_{session} {}

  Sample time(const Variant& variant) override {
    session_.before_sample(variant);
    if (options_.cache == Cache::cold) cold_.evict();
    session_.synchronize_all();
    recorder_.start();
    const auto start = std::chrono::steady_clock::now();
    session_.fork();
    variant.run(session_.workload(), session_.launch());
    session_.join();
    session_.synchronize_all();
    Sample sample;
    sample.host_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    check(cudaGetLastError());
    sample.raw_ms = static_cast<double>(profile::span_ns(recorder_.stop())) / 1e6;
    sample.metrics = collect_metrics(session_.workload(), variant.name);
    return sample;
  }

  // CUPTI's durations begin and end with the work itself.
  double time_probe() override { return 0; }

 private:
  pair::Session& session_;
  StopwatchOptions options_;
  ColdCache cold_;
  profile::ActivityRecorder recorder_;
};

}  // namespace

std::unique_ptr<Stopwatch> make_kernel_stopwatch(pair::Session& session, const StopwatchOptions& options) {
  return std::make_unique<KernelStopwatch>(session, options);
}

}  // namespace aisp::measure
