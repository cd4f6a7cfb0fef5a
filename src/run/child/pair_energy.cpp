// SPDX-License-Identifier: Apache-2.0
// Joules a run of a PairRun's variants.
#include <fmt/format.h>

#include "base/system/clock.hpp"
#include "measure/energy.hpp"
#include "measure/statistics/statistics.hpp"
#include "run/child/back_to_back.hpp"
#include "run/child/pair_run.hpp"
#include "run/results/energy_result.hpp"

namespace aisp::run {
namespace {

// The host may be held up for tens of milliseconds: that much must be queued. One long execution is enough.
constexpr double long_run_s = 0.02;
std::size_t batches_ahead(double run_s) { return run_s < long_run_s ? BackToBack::most_ahead : 2; }

// Why nothing can be told of any variant.
std::string obstacle(const pair::Session& session, const Ground& ground) {
  if (!session.on_gpu()) return "no joules on the host: only root may read the processor's energy counter (RAPL)";
  if (session.changes_state()) return "no joules: inputs that a run changes must be restored before the next one";
  if (!ground.energy_mj()) return "no joules: NVML gives no energy counter of this GPU";
  return {};
}

}  // namespace

void PairRun::measure_energy() {
  if (!request_.energy) return;
  if (std::string why = obstacle(*session_, *ground_); !why.empty())
    return void(result_.lost.push_back({evidence::LostKind::energy, std::move(why)}));
  // The times are known: whatever happens to the joules must not lose them.
  send_partial();
  stages_.begin("energy", request_.limits.energy);
  std::vector<const Timed*> metered;
  std::vector<double> run_s;
  for (const Timed& timed : timed_) {
    if (timed.variant->reset != nullptr) {
      result_.lost.push_back(
          {evidence::LostKind::energy, fmt::format("no joules of {}: it must be reset before every run", timed.variant->name)});
      continue;
    }
    metered.push_back(&timed);
    run_s.push_back(timed.result->timing->summary.median * 1e-3);
  }
  BackToBack executions{*session_};
  const measure::EnergyCounter counter{[&] { return ground_->energy_mj(); }, base::monotonic_s};
  const measure::EnergyCallbacks callbacks{.queue =
                                               [&](std::size_t index, int runs) {
                                                 const profile::Scope range{metered[index]->result->name};
                                                 return executions.queue(*metered[index]->variant, runs,
                                                                         batches_ahead(run_s[index]));
                                               },
                                           .finish = [&] { executions.finish(); },
                                           .last_update = [&] { return counter.last_update(); },
                                           .now_s = base::monotonic_s};
  // A round that began just before the deadline must still end before the stage's limit.
  const measure::EnergyReadings readings = measure::read_energy(
      run_s, {.window_s = request_.energy_window_s, .deadline_s = 0.6 * request_.limits.energy, .seed = request_.seed},
      callbacks);
  if (!readings.obstacle.empty()) result_.lost.push_back({evidence::LostKind::energy, "joules: " + readings.obstacle});
  const bool with_baseline = !metered.empty() && metered.front() == &timed_.front();
  for (std::size_t i = 0; i < metered.size(); ++i) {
    metered[i]->result->energy = energy_of(readings.windows[i], metered[i]->result->cost, readings.steps_s);
    if (i > 0 && with_baseline && metered[i]->result->energy)
      metered[i]->result->energy->ratio = energy_ratio(readings.windows.front(), readings.windows[i]);
  }
}

}  // namespace aisp::run
