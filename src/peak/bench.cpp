// SPDX-License-Identifier: Apache-2.0
#include "peak/parts.hpp"

#include <aisp/check.hpp>

#include <algorithm>

#include "base/system/clock.hpp"
#include "measure/statistics/statistics.hpp"

namespace aisp::peak {
namespace {

// The stopwatches time variants of pairs: this one does whatever it was last given.
class AnyWork final : public Workload {
 public:
  explicit AnyWork(Setup&) {}
  Cost cost() const override { return {}; }
  void run(Launch& launch) { work(launch); }
  Work work;
};

constexpr Variant any_work{.name = "load", .run = call<&AnyWork::run>};

const Pair& pair_of(Device device) {
  static const Pair on_gpu{.teaches = "a load", .make = make<AnyWork>, .baseline = any_work, .optimized = variants({any_work})};
  static const Pair on_host{.teaches = "a load",
                            .make = make<AnyWork>,
                            .baseline = any_work,
                            .optimized = variants({any_work}),
                            .device = Device::host};
  return device == Device::gpu ? on_gpu : on_host;
}

// As CUPTI records it on an H200; the stopwatch reads it too much.
constexpr double probe_s = 1.3e-6;
constexpr double batch_s = 0.05;  // of a long load, between two looks at the clock
constexpr double rest_s = 0.2;    // before a burst, so that what ran before does not hold its clock down

pair::SessionOptions options_for(Device device) {
  pair::SessionOptions options;
  if (device == Device::gpu) options.gpus = {0};
  return options;
}

}  // namespace

Bench::Bench(Device device, int repetitions, double sustain_s)
    : repetitions_{repetitions}, sustain_s_{sustain_s}, session_{pair_of(device), options_for(device)} {
  if (device == Device::host) {
    hot_ = measure::make_host_stopwatch(session_);
    return;
  }
  gpu_ = machine::probe_here().gpus.at(0);
  nvml_ = machine::Nvml::get().device(gpu_.uuid);
  hot_ = measure::make_event_stopwatch(session_, {.cache = Cache::hot, .checked = false});
  cold_ = measure::make_event_stopwatch(session_, {.checked = false});
  std::vector<double> probes_s;
  for (int i = 0; i < 20; ++i) probes_s.push_back(hot_->time_probe() * 1e-3);
  offset_s_ = std::max(0.0, measure::median(probes_s) - probe_s);
}

Bench::~Bench() = default;

double Bench::once(measure::Stopwatch& stopwatch, const Work& work) {
  static_cast<AnyWork&>(session_.workload()).work = work;
  return stopwatch.time(session_.pair().baseline).raw_ms * 1e-3;
}

double Bench::seconds(const Work& work, Cache cache) {
  // Code is loaded by a first execution, which may wait for the GPU: not behind the stopwatch's gate.
  work(session_.launch());
  session_.synchronize_all();
  measure::Stopwatch& stopwatch = cache == Cache::cold && cold_ ? *cold_ : *hot_;
  std::vector<double> samples_s;
  for (int i = 0; i < 2 + repetitions_; ++i) samples_s.push_back(once(stopwatch, work));
  samples_s.erase(samples_s.begin(), samples_s.begin() + 2);
  return std::max(measure::median(samples_s) - offset_s_, 1e-9);
}

double Bench::kernel_seconds(const Work& work) {
  const auto stopwatch = measure::make_kernel_stopwatch(session_, {.cache = Cache::hot, .checked = false});
  std::vector<double> samples_s;
  for (int i = 0; i < 2 + repetitions_; ++i) samples_s.push_back(once(*stopwatch, work));
  return measure::median(samples_s);
}

Figure Bench::best_rate(std::vector<std::function<Load()>> loads, Cache cache) {
  Figure figure;
  std::optional<Load> best;
  double best_s = 0;
  std::string reason = "there is no way to measure it";
  bool rests = sustain_s_ > 0;  // behind what the last figure sustained
  for (const auto& prepare : loads) try {
      Load load = prepare();
      if (rests || load.tuned) base::sleep_s(rest_s);
      rests = false;
      const double burst_s = seconds(load.work, cache);
      const double rate = load.amount / burst_s;
      if (rate <= figure.value) continue;
      figure.value = rate;
      figure.how = load.how;
      best_s = burst_s;
      best = std::move(load);
    } catch (const Unsupported& error) {
      reason = error.what();
    }
  if (!best) throw Unsupported{reason};
  if (sustain_s_ > 0) figure.sustained = sustain(*best, best_s);
  return figure;
}

Sustained Bench::sustain(const Load& load, double burst_s) {
  const int batch = std::max(1, static_cast<int>(batch_s / burst_s));
  std::vector<double> rates;
  std::vector<machine::GpuSample> states;
  const double start_s = base::monotonic_s();
  while (base::monotonic_s() - start_s < sustain_s_) {
    const double batch_start_s = base::monotonic_s();
    for (int i = 0; i < batch; ++i) load.work(session_.launch());
    if (nvml_) states.push_back(nvml_->sample().value_or(machine::GpuSample{}));
    session_.synchronize_all();
    rates.push_back(load.amount * batch / (base::monotonic_s() - batch_start_s));
  }
  Sustained sustained{.duration_s = base::monotonic_s() - start_s};
  // The first two thirds are for the clock to settle.
  rates.erase(rates.begin(), rates.begin() + static_cast<std::ptrdiff_t>(rates.size() * 2 / 3));
  sustained.value = measure::median(rates);
  if (states.empty()) return sustained;
  const machine::GpuSample& state = states[states.size() * 5 / 6];
  sustained.sm_clock_mhz = state.sm_clock_mhz;
  sustained.power_w = state.power_w;
  sustained.throttle_reasons = state.throttle_reasons;
  return sustained;
}

}  // namespace aisp::peak
