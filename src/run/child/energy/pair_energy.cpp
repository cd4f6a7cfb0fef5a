// SPDX-License-Identifier: Apache-2.0
#include "run/child/energy/pair_energy.hpp"

#include <fmt/format.h>

#include "base/system/clock.hpp"
#include "measure/energy.hpp"
#include "profile/ranges.hpp"
#include "run/child/energy/back_to_back.hpp"
#include "run/results/assemble.hpp"

namespace aisp::run {
namespace {

// The host may be delayed for tens of milliseconds: that much work must be queued. One long execution is enough.
constexpr double long_run_s = 0.02;
std::size_t batches_ahead(double run_s) { return run_s < long_run_s ? BackToBack::most_ahead : 2; }

// Returns why energy cannot be measured for any variant; empty if it can.
std::string obstacle(const pair::Session& session, const Environment& environment) {
  if (!session.on_gpu()) return "no joules on the host: only root may read the processor's energy counter (RAPL)";
  if (session.ranks() > 1) return "no joules: ranks run in turns with pauses, not back to back";
  if (session.changes_state()) return "no joules: inputs that a run changes must be restored before the next one";
  if (!environment.energy_mj()) return "no joules: NVML gives no energy counter of this GPU";
  return {};
}

std::vector<const Timed*> those_without_reset(Record& record, const std::vector<Timed>& all) {
  std::vector<const Timed*> metered;
  for (const Timed& timed : all) {
    if (timed.variant->reset == nullptr) metered.push_back(&timed);
    else
      record.lose(evidence::LostKind::energy,
                  fmt::format("no joules of {}: it must be reset before every run", timed.variant->name));
  }
  return metered;
}

measure::EnergyReadings read(const Context& context, pair::Session& session, const std::vector<const Timed*>& metered) {
  std::vector<double> run_s;
  for (const Timed* timed : metered) run_s.push_back(timed->result->timing->summary.median * 1e-3);
  BackToBack executions{session};
  const measure::EnergyCounter counter{[&] { return context.environment.energy_mj(); }, base::monotonic_s};
  const auto queue = [&](std::size_t index, int runs) {
    const profile::Scope range{metered[index]->result->name};
    return executions.queue(*metered[index]->variant, runs, batches_ahead(run_s[index]));
  };
  const measure::EnergyCallbacks callbacks{.queue = queue,
                                           .finish = [&] { executions.finish(); },
                                           .last_update = [&] { return counter.last_update(); },
                                           .now_s = base::monotonic_s};
  const Request& request = context.request;
  // A round that began just before the deadline must still end before the stage's limit.
  return measure::read_energy(
      run_s, {.window_s = request.energy_window_s, .deadline_s = 0.6 * request.limits.energy, .seed = request.seed}, callbacks);
}

void note_energy(const measure::EnergyReadings& readings, const std::vector<const Timed*>& metered, const Timed& baseline) {
  const bool with_baseline = !metered.empty() && metered.front() == &baseline;
  for (std::size_t i = 0; i < metered.size(); ++i) {
    evidence::VariantResult& variant = *metered[i]->result;
    variant.energy = energy_of(readings.windows[i], variant.cost, readings.steps_s);
    if (i > 0 && with_baseline && variant.energy)
      variant.energy->ratio = energy_ratio(readings.windows.front(), readings.windows[i]);
  }
}

}  // namespace

void measure_energy(const Context& context, Stages& stages, Record& record, pair::Session& session,
                    const std::vector<Timed>& timed) {
  if (!context.request.energy) return;
  if (std::string why = obstacle(session, context.environment); !why.empty())
    return record.lose(evidence::LostKind::energy, std::move(why));
  // Times are known by now: a failure here must not lose them.
  record.send_partial();
  stages.begin(evidence::Stage::energy, context.request.limits.energy);
  const std::vector<const Timed*> metered = those_without_reset(record, timed);
  const measure::EnergyReadings readings = read(context, session, metered);
  if (!readings.obstacle.empty()) record.lose(evidence::LostKind::energy, "joules: " + readings.obstacle);
  note_energy(readings, metered, timed.front());
}

}  // namespace aisp::run
