// SPDX-License-Identifier: Apache-2.0
#include <aisp/check.hpp>

#include "measure/sample.hpp"
#include "measure/stopwatch.hpp"
#include "profile/activity.hpp"

namespace aisp::measure {
namespace {

// Records from its construction on: switching CUPTI around each sample would make pauses in which a chip at its power cap cools
// down, so that times would differ from those of events.
class KernelStopwatch final : public Stopwatch {
 public:
  KernelStopwatch(pair::Session& session, const Conditions& conditions) : Stopwatch{session, conditions} { recorder_.start(); }
  ~KernelStopwatch() override { recorder_.stop(); }

  using Stopwatch::time;
  Sample time(const Variant& variant, Capture& capture) override {
    std::uint64_t ready_ns = 0;
    const Frame frame{.ready = [&] { ready_ns = profile::ActivityRecorder::now_ns(); }};
    const Executed executed = executor_.execute(variant, capture, frame);
    Sample sample{
        .host_ms = executed.host_ms, .run_ms = executed.run_ms, .early_ms = executed.early_ms, .late_ms = executed.late_ms};
    std::vector<profile::Activity> activities = recorder_.take();
    std::erase_if(activities, [&](const profile::Activity& activity) { return activity.start_ns < ready_ns || activity.own; });
    sample.raw_ms = static_cast<double>(profile::span_ns(activities)) / 1e6;
    sample.metrics = executor_.report(variant);
    return sample;
  }

  // CUPTI's durations begin and end with the work itself.
  double time_probe() override { return 0; }

 private:
  profile::ActivityRecorder recorder_;
};

}  // namespace

std::unique_ptr<Stopwatch> make_kernel_stopwatch(pair::Session& session, const Conditions& conditions) {
  return std::make_unique<KernelStopwatch>(session, conditions);
}

}  // namespace aisp::measure
