// SPDX-License-Identifier: Apache-2.0
#include "measure/execution.hpp"

#include <aisp/check.hpp>

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <thread>

#include "measure/cpu_use.hpp"
#include "measure/idle_watch.hpp"
#include "pair/running_variant.hpp"

namespace aisp::measure {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// A stream that shares a hardware queue with the held one does not finish.
constexpr auto longest_look = 20ms;

// A report of metrics may take this long, or this part of the shortest execution: nothing worth it can be computed in that time.
constexpr double quick_report_ms = 0.02, quick_report_share = 0.05;
// Reports may take longer so often, as a busy machine makes some, before they find other inputs.
constexpr int most_long_reports = 3;

}  // namespace

Executor::Executor(pair::Session& session, const Conditions& conditions)
    : session_{session}, conditions_{conditions}, digests_{session}, held_digests_{session} {
  if (!session.on_gpu()) return;
  if (conditions.cache == Cache::cold) cold_ = std::make_unique<ColdCache>(session.gpu_ordinals());
  gate_ = std::make_unique<Gate>();
  limits_ = std::make_unique<DeviceLimits>(session);
  check(cudaEventCreateWithFlags(&finished_, cudaEventDisableTiming));
  // Loads code now, not after a closed gate, as for digests.
  if (cold_) cold_->evict();
  digests_.load();
  session_.synchronize_all();
}

Executor::~Executor() {
  if (finished_ != nullptr) cudaEventDestroy(finished_);
}

void Executor::load(const Variant& variant) {
  session_.reset(variant);
  session_.rank_group().start_together("the first execution of " + std::string{variant.name});
  submit_behind_gate(session_, variant, conditions_.start, 5ms);
}

void submit_behind_gate(pair::Session& session, const Variant& variant, Start start, std::chrono::milliseconds longest) {
  std::optional<Gate> gate;
  if (session.on_gpu() && start == Start::released) gate.emplace(longest).close(session.launch().stream);
  session.submit(variant);
  if (gate) gate->open();
  session.synchronize_all();
}

Executed Executor::execute(const Variant& variant, Capture& capture, const Frame& frame) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    make_ready(variant, capture);
    Executed executed = perform(variant, capture, frame);
    if (session_.on_gpu()) executed.forced_open = session_.rank_group().any("the gate", executed.forced_open);
    if (!executed.forced_open) return executed;
  }
  throw WaitsForGpu{std::string{variant.name}};
}

void Executor::make_ready(const Variant& variant, Capture& capture) {
  resets_ = variant.reset != nullptr;
  const bool hot = conditions_.cache == Cache::hot && conditions_.checked && session_.on_gpu();
  if (hot) warm(variant);
  session_.reset(variant);
  if (capture.rested) {
    session_.synchronize_all();
    capture.rested();
  }
  if (conditions_.checked) poison_outputs();
  poisoned_.clear();
  if (capture.watch && conditions_.checked && conditions_.start == Start::released && gate_ && can_watch_held_) {
    held_digests_.queue_aside();
    session_.synchronize_all();
    poisoned_ = held_digests_.read({});
  }
  empty_caches();
  if (!session_.on_gpu() && capture.watch) capture.idle_cpu_ms = IdleWatch{}.busiest_ms();
}

// Brings code, inputs and outputs into the caches; results are discarded. The run that follows has other contents.
void Executor::warm(const Variant& variant) {
  session_.reset(variant);
  const pair::Session::OtherInputs others{session_};
  session_.submit(variant);
  session_.synchronize_all();
}

// Leaves L2 with nothing but clean lines of the harness; work of other streams that still runs then was begun too early.
void Executor::empty_caches() {
  if (!session_.on_gpu()) return;
  if (cold_) {
    cold_->evict();
    cold_->wait();
  }
  const Clock::time_point start = Clock::now();
  session_.synchronize_all();
  early_ms_ = milliseconds_since(start);
}

void Executor::poison_outputs() {
  // Differs from the last two bytes: compared executions then always have different poison, even if the second was attempted
  // twice.
  poison_ = 1 + (poison_ + std::uniform_int_distribution{0, 126}(random_)) % 255;
  session_.poison_outputs(poison_);
}

std::vector<MetricValue> Executor::report(const Variant& variant) {
  const pair::Session::Hidden hidden{session_, variant};
  if (session_.on_gpu()) return collect_metrics(session_.workload(), variant.name);
  std::optional<pair::Session::OtherInputs> others;
  if (long_reports_ >= most_long_reports) others.emplace(session_);
  const Clock::time_point start = Clock::now();
  std::vector<MetricValue> values = collect_metrics(session_.workload(), variant.name);
  if (milliseconds_since(start) > quick_report_ms + quick_report_share * least_host_ms_) ++long_reports_;
  return values;
}

Executed Executor::perform(const Variant& variant, Capture& capture, const Frame& frame) {
  const pair::Session::Hidden hidden{session_, variant};
  return perform_work([&] { session_.submit(variant); }, capture, frame);
}

Executed Executor::perform_block(const Variant& variant, int runs, Capture& capture) {
  const pair::Session::Hidden hidden{session_, variant};
  const auto block = [&] {
    for (int run = 0; run < runs; ++run) session_.submit(variant);
  };
  return perform_work(block, capture, {});
}

Executed Executor::perform_work(const std::function<void()>& work, Capture& capture, const Frame& frame) {
  const Executed executed = around(work, conditions_.start, conditions_.checked ? &capture : nullptr, frame);
  least_host_ms_ = std::min(least_host_ms_, executed.host_ms);
  // Checks for idle threads only now: workers that finish the run need a moment, and a reset may give it to them.
  std::optional<IdleWatch> idle;
  if (!session_.on_gpu() && capture.watch && !resets_) idle.emplace();
  if (conditions_.checked && capture.copies != nullptr)
    for (pair::Snapshot& copy : *capture.copies) copy.finish();
  // Ends before digests, for which the harness has threads of its own.
  if (idle) capture.idle_cpu_ms = std::max(capture.idle_cpu_ms, idle->busiest_ms());
  if (conditions_.checked && capture.digest) capture.digests = digests_.read(capture.key);
  if (conditions_.checked) restore_settings();
  pair::note_running_variant({});
  return executed;
}

void Executor::restore_settings() {
  changed_limits_ = host_settings_.restore();
  if (!limits_) return;
  for (std::string& changed : limits_->restore()) changed_limits_.push_back(std::move(changed));
}

Executed Executor::execute(const std::function<void()>& work, const Frame& frame) {
  empty_caches();
  return around(work, Start::released, nullptr, frame);
}

Executed Executor::around(const std::function<void()>& work, Start start, Capture* capture, const Frame& frame) {
  const bool gated = gate_ && start == Start::released;
  const cudaStream_t stream = session_.launch().stream;
  if (frame.ready) frame.ready();
  // Ranks meet before a gate is closed, so that it is not closed for long, and again before it opens.
  start_together();
  if (!gated) children_.begin();
  std::optional<CpuWait> wait;
  if (!session_.on_gpu()) wait.emplace();
  if (gated) gate_->close(stream);
  if (frame.begin) frame.begin(stream);
  Executed executed{.early_ms = early_ms_};
  const double caller_cpu_ms = wait ? cpu_ms_of_caller() : 0, cpu_ms = wait ? cpu_ms_of_process() : 0;
  Clock::time_point started = Clock::now();
  work();
  executed.host_ms = executed.run_ms = milliseconds_since(started);
  if (wait) {
    executed.caller_cpu_ms = cpu_ms_of_caller() - caller_cpu_ms;
    executed.cpu_ms = cpu_ms_of_process() - cpu_ms;
  }
  if (wait) executed.cpu_wait_ms = wait->ms();
  if (frame.end) frame.end(stream);
  if (capture != nullptr) session_.collect();
  if (!session_.on_gpu()) {
    children_.end();
    return executed;
  }
  check(cudaGetLastError());
  check(cudaEventRecord(finished_, stream));
  if (capture != nullptr) queue_looks(*capture);
  if (gated) {
    if (capture != nullptr) watch_held(*capture);
    start_together();
    children_.begin();
    started = Clock::now();
    gate_->open();
  }
  check(cudaEventSynchronize(finished_));
  executed.host_ms = milliseconds_since(started);
  executed.forced_open = gated && gate_->forced_open();
  for (const cudaStream_t looked : session_.launch().streams) check(cudaStreamSynchronize(looked));
  const Clock::time_point finished = Clock::now();
  session_.synchronize_all();
  executed.late_ms = milliseconds_since(finished);
  children_.end();
  return executed;
}

void Executor::start_together() {
  if (pair::RankGroup& ranks = session_.rank_group(); ranks.several())
    ranks.start_together("an execution of " + pair::running_variant());
}

// Queues copies and digests in the stream right after the execution, before anything can wait for its end.
void Executor::queue_looks(Capture& capture) {
  // Work of the first GPU's stream may write to the others' memory.
  for (std::size_t i = 1; i < session_.launch().streams.size(); ++i)
    check(cudaStreamWaitEvent(session_.launch().streams[i], finished_));
  if (capture.digest) digests_.queue(capture.key);
  if (capture.copies != nullptr)
    for (pair::Snapshot& copy : *capture.copies) copy.queue();
}

// Checks that no work of the execution has happened yet: work that waits for the stream cannot have begun.
void Executor::watch_held(Capture& capture) {
  capture.look_did_not_end = capture.watch && !can_watch_held_;
  if (poisoned_.empty()) return;
  std::this_thread::sleep_for(std::chrono::microseconds{std::uniform_int_distribution{50, 500}(random_)});
  held_digests_.queue_aside();
  const Clock::time_point start = Clock::now();
  while (!held_digests_.ready()) {
    if (Clock::now() - start < longest_look) continue;
    can_watch_held_ = false;
    capture.look_did_not_end = true;
    return;
  }
  capture.looked_while_held = true;
  capture.touched_while_held = held_digests_.read({}) != poisoned_;
}

}  // namespace aisp::measure
