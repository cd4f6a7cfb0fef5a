// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/layout.hpp"
#include "base/system/clock.hpp"
#include "base/text.hpp"
#include "cli/output.hpp"
#include "report/console.hpp"
#include "suite/settings/configuration.hpp"

namespace aisp::cli {

namespace {

constexpr double redraw_every_s = 0.1;
// A pair's process takes this long apart from sampling: all 163 pairs took 409 s on two H100s with the default budget of 3 s, 5.0
// s each.
constexpr double beside_sampling_s = 2;

// "NVIDIA H200", "8 x NVIDIA H200", "NVIDIA H200, 2 x NVIDIA L4"
std::string gpus_text(const suite::Task& task) {
  std::vector<std::pair<std::string, std::size_t>> kinds;
  for (const int ordinal : suite::gpus_in_use(task)) {
    const std::string& name = task.machine.gpus[static_cast<std::size_t>(ordinal)].name;
    const auto known = std::ranges::find(kinds, name, &std::pair<std::string, std::size_t>::first);
    if (known == kinds.end()) kinds.emplace_back(name, 1);
    else ++known->second;
  }
  std::vector<std::string> parts;
  for (const auto& [name, count] : kinds) parts.push_back(count == 1 ? name : fmt::format("{} x {}", count, name));
  return base::join(parts, ", ");
}

std::string places_text(const suite::Task& task) {
  const bool on_host = std::ranges::any_of(task.placements, [](const suite::Placement& placement) {
    return !placement.choices.empty() && placement.choices.front().empty();
  });
  const std::string gpus = gpus_text(task);
  if (!gpus.empty()) return gpus + (on_host ? " and the host" : "");
  const machine::Host& host = task.machine.host;
  const std::string cpus = base::plural(static_cast<std::size_t>(std::max(host.cpus_usable, 0)), "CPU");
  return host.cpu.empty() ? "the host's " + cpus : fmt::format("{} ({})", host.cpu, cpus);
}

double expected_s(const suite::Task& task, const suite::Placement& placement) {
  return suite::request_for(*placement.entry, task.configuration, placement.point).budget_s + beside_sampling_s;
}

// Estimates the time of the pairs that can run. GPUs are at work at the same time, but for what must be alone.
double estimated_s(const suite::Task& task) {
  double alone_s = 0, shared_s = 0;
  for (const suite::Placement& placement : task.placements) {
    if (placement.choices.empty()) continue;
    const double each_s = expected_s(task, placement);
    const double quiet_s = placement.begins_alone() ? each_s : placement.alone ? each_s - beside_sampling_s : 0;
    alone_s += quiet_s;
    shared_s += (each_s - quiet_s) * static_cast<double>(std::max<std::size_t>(placement.choices.front().size(), 1));
  }
  return alone_s + shared_s / static_cast<double>(std::max<std::size_t>(task.gpus.size(), 1));
}

}  // namespace

std::string heading(const suite::Task& task) {
  const auto skipped = static_cast<std::size_t>(
      std::ranges::count_if(task.placements, [](const suite::Placement& placement) { return placement.choices.empty(); }));
  std::string text = base::plural(task.placements.size() - skipped, "pair") + " on " + places_text(task);
  if (skipped > 0) text += fmt::format(", {} skipped", skipped);
  const bool known = !task.resumed && !task.against && skipped < task.placements.size();
  return known ? text + ", about " + base::human_duration(estimated_s(task)) : text;
}

TimeLeft time_left(const suite::Task& task) {
  std::map<std::string, double> each_s;
  bool all_alone = true;
  for (const suite::Placement& placement : task.placements) {
    if (placement.choices.empty()) continue;
    each_s[placement.label()] = expected_s(task, placement);
    all_alone = all_alone && placement.alone;
  }
  return {std::move(each_s), all_alone ? 1 : task.gpus.size()};
}

std::string doing_text(const run::Progress& progress) {
  const run::RoundProgress& rounds = progress.rounds;
  if (rounds.of <= 0) return std::string{to_string(progress.stage)};
  const bool by_interval = rounds.wanted_percent > 0 && rounds.interval_percent > 0;
  std::string text = by_interval ? fmt::format("interval {} % (until {} %)", base::significant(rounds.interval_percent, 2),
                                               base::significant(rounds.wanted_percent, 1))
                                 : fmt::format("round {} of {}", rounds.round, rounds.of);
  if (rounds.budget_s <= 0) return text;
  // The fewest rounds may take longer than the budget.
  return text + (rounds.spent_s <= rounds.budget_s
                     ? fmt::format(", {:.1f} of {:g} s", rounds.spent_s, rounds.budget_s)
                     : fmt::format(", {:.1f} s, {:g} s were planned", rounds.spent_s, rounds.budget_s));
}

void ProgressDisplay::suite_begun(const std::filesystem::path& /*folder*/, std::size_t pairs) { pairs_ = pairs; }

void ProgressDisplay::pair_begun(const std::string& target, const std::vector<int>& /*gpus*/) {
  running_[target] = "starting";
  options_.left.begun(target, base::monotonic_s());
  draw();
}

void ProgressDisplay::pair_progressed(const std::string& target, const run::Progress& progress) {
  running_[target] = doing_text(progress);
  options_.left.progressed(target, progress.rounds);
  if (progress.rounds.of == 0 || !drawn_lately()) draw();
}

void ProgressDisplay::pair_ended(const evidence::PairResult& result, std::size_t done, std::size_t /*pairs*/) {
  done_ = done;
  running_.erase(label_in_run(result));
  options_.left.ended(label_in_run(result), base::monotonic_s());
  erase();
  // Those that are skipped are listed at the end, by reason.
  const bool shown = result.status != evidence::Status::skipped;
  if (shown && options_.results && !options_.quiet && output_trouble_.empty()) {
    // A full disk behind the standard output must not end the measuring.
    try {
      show(report::pair_line(result, options_.paint, options_.widths) + '\n' + report::pair_details(result, options_.widths));
    } catch (const std::exception& error) {
      output_trouble_ = error.what();
    }
  }
  draw();
}

void ProgressDisplay::warned(const std::string& line) {
  erase();
  note("aisp: warning: " + line);
  draw();
}

void ProgressDisplay::erase() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
  drawn_ = false;
}

// Rounds can be shorter than anybody reads.
bool ProgressDisplay::drawn_lately() const { return drawn_ && base::monotonic_s() - drawn_s_ < redraw_every_s; }

void ProgressDisplay::draw() {
  if (!options_.live || options_.quiet || running_.empty()) return;
  std::string line = fmt::format("[{}/{}]", done_, pairs_);
  for (const auto& [target, doing] : running_) line += fmt::format(" {} ({})", target, doing);
  const std::size_t waiting = pairs_ - std::min(pairs_, done_ + running_.size());
  if (const std::string left = options_.left.text(waiting, base::monotonic_s()); !left.empty()) line += ", " + left;
  const base::Screen screen = base::screen_of(STDERR_FILENO);
  line = base::for_screen(line, {.utf8 = screen.utf8});
  std::fprintf(stderr, "\r\x1b[K%s", base::first_columns(line, screen.width - 1).c_str());
  std::fflush(stderr);
  drawn_ = true;
  drawn_s_ = base::monotonic_s();
}

TimeLeft::TimeLeft(std::map<std::string, double> expected_s, std::size_t at_once)
    : expected_s_{std::move(expected_s)}, at_once_{std::max<std::size_t>(at_once, 1)} {}

void TimeLeft::begun(const std::string& label, double now_s) { running_[label] = {.began_s = now_s, .rounds = {}}; }

void TimeLeft::progressed(const std::string& label, const run::RoundProgress& rounds) {
  if (const auto found = running_.find(label); found != running_.end() && rounds.of > 0) found->second.rounds = rounds;
}

void TimeLeft::ended(const std::string& label, double now_s) {
  const auto found = running_.find(label);
  if (found == running_.end()) return;  // skipped, which takes no time
  measured_s_ += now_s - found->second.began_s;
  expected_of_measured_s_ += expected_s(label);
  running_.erase(found);
}

double TimeLeft::mean_expected_s() const {
  double sum_s = 0;
  for (const auto& [label, time_s] : expected_s_) sum_s += time_s;
  return expected_s_.empty() ? 0 : sum_s / static_cast<double>(expected_s_.size());
}

double TimeLeft::expected_s(const std::string& label) const {
  const auto found = expected_s_.find(label);
  return found == expected_s_.end() ? mean_expected_s() : found->second;
}

double TimeLeft::whole_s(const std::string& label, const Running& running, double factor, double now_s) const {
  const double spent_s = now_s - running.began_s, usual_s = std::max(spent_s, factor * expected_s(label));
  const run::RoundProgress& rounds = running.rounds;
  if (rounds.round <= 0) return usual_s;
  const double round_s = rounds.spent_s / rounds.round;
  return std::max(usual_s, spent_s + round_s * std::max(0, rounds.of - rounds.round));
}

double TimeLeft::factor(double now_s) const {
  const double of_measured = expected_of_measured_s_ > 0 ? measured_s_ / expected_of_measured_s_ : 1;
  double with_running_s = measured_s_, expected_with_running_s = expected_of_measured_s_;
  for (const auto& [label, running] : running_) {
    with_running_s += whole_s(label, running, of_measured, now_s);
    expected_with_running_s += expected_s(label);
  }
  return expected_with_running_s > 0 ? std::max(of_measured, with_running_s / expected_with_running_s) : of_measured;
}

std::string TimeLeft::text(std::size_t waiting, double now_s) const {
  const double times = factor(now_s);
  double left_s = times * mean_expected_s() * static_cast<double>(waiting);
  for (const auto& [label, running] : running_) left_s += whole_s(label, running, times, now_s) - (now_s - running.began_s);
  left_s /= static_cast<double>(std::min(at_once_, std::max<std::size_t>(waiting + running_.size(), 1)));
  return left_s > 0 ? base::human_duration(left_s) + " left" : std::string{};
}

}  // namespace aisp::cli
