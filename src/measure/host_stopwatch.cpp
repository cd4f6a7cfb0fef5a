// SPDX-License-Identifier: Apache-2.0
#include <aisp/check.hpp>

#include <chrono>
#include <map>
#include <string_view>

#include "measure/metrics.hpp"
#include "measure/stopwatch.hpp"

namespace aisp::measure {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - start).count();
}

class HostStopwatch final : public Stopwatch {
 public:
  explicit HostStopwatch(pair::Session& session) : session_{session} {}

  Sample time(const Variant& variant) override {
    session_.before_sample(variant);
    pair::LaunchState& launch = session_.launch();
    launch.start_recording();
    const auto start = Clock::now();
    variant.run(session_.workload(), launch);
    const auto end = Clock::now();
    Sample sample;
    sample.raw_ms = sample.host_ms = milliseconds_between(start, end);
    sample.marks = launch.stop_recording(nullptr);
    sample.metrics = collect_metrics(session_.workload(), variant.name);
    return sample;
  }

  double time_probe() override {
    const auto start = Clock::now();
    return milliseconds_between(start, Clock::now());
  }

 private:
  pair::Session& session_;
};

class TimerStopwatch final : public Stopwatch {
 public:
  explicit TimerStopwatch(pair::Session& session) : session_{session} {}

  Sample time(const Variant& variant) override {
    const int runs = runs_for(variant);
    session_.before_sample(variant);
    session_.synchronize_all();
    Sample sample;
    sample.raw_ms = sample.host_ms = block_ms(variant, runs) / runs;
    sample.metrics = collect_metrics(session_.workload(), variant.name);
    return sample;
  }

  // Blocks are long enough for the clock's own time not to count.
  double time_probe() override { return 0; }

 private:
  static constexpr double shortest_block_ms = 10;
  static constexpr int most_runs = 1 << 20;

  double block_ms(const Variant& variant, int runs) {
    const auto start = Clock::now();
    for (int i = 0; i < runs; ++i) {
      session_.fork();
      variant.run(session_.workload(), session_.launch());
      session_.join();
    }
    session_.synchronize_all();
    const auto end = Clock::now();
    if (session_.on_gpu()) check(cudaGetLastError());
    return milliseconds_between(start, end);
  }

  // State that must be restored before every execution allows blocks of one only.
  int runs_for(const Variant& variant) {
    if (variant.reset != nullptr || session_.changes_state()) return 1;
    int& runs = runs_[variant.name];
    if (runs != 0) return runs;
    runs = 1;
    while (runs < most_runs && block_ms(variant, runs) < shortest_block_ms) runs *= 2;
    return runs;
  }

  pair::Session& session_;
  std::map<std::string_view, int> runs_;
};

}  // namespace

std::unique_ptr<Stopwatch> make_timer_stopwatch(pair::Session& session) { return std::make_unique<TimerStopwatch>(session); }

std::unique_ptr<Stopwatch> make_host_stopwatch(pair::Session& session) { return std::make_unique<HostStopwatch>(session); }

}  // namespace aisp::measure
