// SPDX-License-Identifier: Apache-2.0
#include <aisp/check.hpp>

#include <chrono>
#include <map>
#include <string_view>

#include "measure/sample.hpp"
#include "measure/stopwatch.hpp"

namespace aisp::measure {
namespace {

using Clock = std::chrono::steady_clock;

class HostStopwatch final : public Stopwatch {
 public:
  explicit HostStopwatch(pair::Session& session) : Stopwatch{session, {.start = Start::immediate}} {}

  using Stopwatch::time;
  Sample time(const Variant& variant, Capture& capture) override {
    pair::LaunchState& launch = session_.launch();
    const Frame frame{.begin = [&](cudaStream_t) { launch.start_recording(); }};
    const Executed executed = executor_.execute(variant, capture, frame);
    Sample sample{.raw_ms = executed.run_ms,
                  .host_ms = executed.host_ms,
                  .run_ms = executed.run_ms,
                  .cpu_wait_ms = executed.cpu_wait_ms,
                  .caller_cpu_ms = executed.caller_cpu_ms};
    sample.marks = launch.stop_recording(nullptr);
    sample.metrics = executor_.report(variant);
    return sample;
  }

  double time_probe() override {
    const auto start = Clock::now();
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  }
};

class TimerStopwatch final : public Stopwatch {
 public:
  TimerStopwatch(pair::Session& session, const Conditions& conditions)
      : Stopwatch{session, {.start = Start::immediate, .cache = conditions.cache, .checked = conditions.checked}} {}

  using Stopwatch::time;
  Sample time(const Variant& variant, Capture& capture) override {
    const int runs = runs_for(variant);
    const Executed executed = block(variant, runs, capture);
    Sample sample{.early_ms = executed.early_ms, .late_ms = executed.late_ms};
    sample.raw_ms = sample.host_ms = executed.host_ms / runs;
    sample.metrics = executor_.report(variant);
    return sample;
  }

  // Blocks are so long that the clock's own time is negligible.
  double time_probe() override { return 0; }

 private:
  static constexpr double shortest_block_ms = 10;
  static constexpr int most_runs = 1 << 20;

  Executed block(const Variant& variant, int runs, Capture& capture) {
    executor_.make_ready(variant, capture);
    return executor_.perform_block(variant, runs, capture);
  }

  // If state must be restored before every execution, a block has one run.
  int runs_for(const Variant& variant) {
    if (variant.reset != nullptr || session_.changes_state()) return 1;
    int& runs = runs_[variant.name];
    if (runs != 0) return runs;
    runs = 1;
    Capture unused{.digest = false};
    while (runs < most_runs && block(variant, runs, unused).host_ms < shortest_block_ms) runs *= 2;
    return runs;
  }

  std::map<std::string_view, int> runs_;
};

}  // namespace

std::unique_ptr<Stopwatch> make_timer_stopwatch(pair::Session& session, const Conditions& conditions) {
  return std::make_unique<TimerStopwatch>(session, conditions);
}

std::unique_ptr<Stopwatch> make_host_stopwatch(pair::Session& session) { return std::make_unique<HostStopwatch>(session); }

}  // namespace aisp::measure
