// SPDX-License-Identifier: Apache-2.0
#include "run/parent/supervisor.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "base/system/process.hpp"
#include "base/system/process_memory.hpp"
#include "pair/all_variants.hpp"
#include "pair/running_variant.hpp"
#include "run/parent/baseline.hpp"
#include "run/parent/ending.hpp"
#include "run/parent/log_capture.hpp"
#include "run/wire/blank.hpp"
#include "run/wire/protocol.hpp"

namespace aisp::run {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double tick_s = 0.05;  // how late a death, a deadline or an interrupt may be noticed
constexpr double near_end_tick_s = 0.002;
constexpr double unkillable_after_s = 10;  // a killed process that stays this long is stuck in a driver

// Variables that make threads sleep between calls: those of OpenMP (GNU's, Intel's, LLVM's) and of OpenBLAS spin for
// milliseconds, which looks like unwanted work. The user's settings stay.
std::vector<std::pair<std::string, std::string>> for_threads_that_sleep() {
  std::vector<std::pair<std::string, std::string>> settings;
  const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
  if (!is_set("OMP_WAIT_POLICY") && !is_set("GOMP_SPINCOUNT") && !is_set("KMP_BLOCKTIME"))
    settings.emplace_back("OMP_WAIT_POLICY", "passive");
  if (!is_set("OPENBLAS_THREAD_TIMEOUT")) settings.emplace_back("OPENBLAS_THREAD_TIMEOUT", "4");
  return settings;
}

class Supervisor {
 public:
  Supervisor(const pair::Entry& entry, const Request& request, const Supervision& supervision)
      : entry_{entry},
        request_{request},
        supervision_{supervision},
        log_{supervision.log, supervision.log_limit_bytes},
        started_{Clock::now()} {
    ending_.result = blank_result(entry, request);
    ending_.timeout_multiplier = request.timeout_multiplier;
  }

  SupervisedRun run() {
    request_.running_variant_page = running_.path();
    try {
      request_.own_folder = own_folder_.emplace("aisp-own-").path().string();
      child_.emplace(base::Command{.argv = {supervision_.executable, "__child", std::to_string(base::Child::result_fd_in_child)},
                                   .environment = for_threads_that_sleep(),
                                   .input = nlohmann::json(request_).dump(),
                                   .output_pipe = true,
                                   .result_pipe = true});
    } catch (const base::Error& error) {
      ending_.result.status = evidence::Status::crashed;
      ending_.result.complete = false;
      ending_.result.reason = fmt::format("its process could not be started: {}", error.what());
      return {std::move(ending_.result), false};
    }
    allow(supervision_.startup_limit_s, Phase::starting);
    while (!reaped_ && !stuck_) {
      wait_for_turn();
      wait_for_news();
      reap();
      enforce();
    }
    drain_all();
    ending_.left_behind = child_->kill_leftovers();
    // Processes killed with the child may still be on their way out.
    if (ending_.killed_for != KilledFor::nothing)
      std::erase_if(ending_.left_behind, [](const base::Leftover& process) { return process.in_group; });
    if (!reaped_) child_->abandon();
    log_.close();
    return conclude();
  }

 private:
  enum class Phase { starting, in_stage, between_stages, after_result };

  double now_s() const { return std::chrono::duration<double>(Clock::now() - started_).count(); }

  void allow(double seconds, Phase phase) {
    phase_ = phase;
    phase_limit_s_ = seconds;
    phase_began_s_ = now_s();
  }

  // The child is silent until it has the answer.
  void wait_for_turn() {
    if (!wanted_turn_) return;
    const double asked_s = now_s();
    const bool came = !supervision_.turn || supervision_.turn(*wanted_turn_, tick_s);
    waited_s_ += now_s() - asked_s;
    if (!came) return;
    wanted_turn_.reset();
    child_->answer("\n");
    allow(supervision_.startup_limit_s, Phase::between_stages);
  }

  void wait_for_news() {
    std::array<pollfd, 2> watched{pollfd{child_->output_fd(), POLLIN, 0}, pollfd{child_->result_fd(), POLLIN, 0}};
    const bool silent = child_->output_fd() < 0 && child_->result_fd() < 0;  // its end is near, and no pipe will show it
    const double patience_s = wanted_turn_ ? 0 : silent ? near_end_tick_s : tick_s;
    ::poll(watched.data(), watched.size(), static_cast<int>(patience_s * 1000));
    if (watched[0].revents != 0) drain_output();
    if (watched[1].revents != 0) drain_results();
  }

  // Reads available output, at most a few buffers at a time so that a child that floods one pipe cannot starve the deadline
  // checks. Returns false at the end of the pipe.
  template <class Take>
  static bool drain(int pipe, Take&& take) {
    static thread_local std::array<char, 64 * 1024> buffer;
    for (int i = 0; i < 16; ++i) {
      const ssize_t count = ::read(pipe, buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) return true;
      if (count <= 0) return false;
      take(std::string_view{buffer.data(), static_cast<std::size_t>(count)});
    }
    return true;
  }
  void drain_output() {
    if (child_->output_fd() < 0) return;
    if (!drain(child_->output_fd(), [&](std::string_view bytes) { log_.append(bytes); })) child_->close_output_fd();
  }
  void drain_results() {
    if (child_->result_fd() < 0) return;
    const auto feed = [&](std::string_view bytes) { lines_.feed(bytes, [&](std::string_view line) { receive(line); }); };
    if (drain(child_->result_fd(), feed)) return;
    child_->close_result_fd();
    if (phase_ != Phase::after_result) pipe_closed();
  }

  // Reads the rest of the pipes after the child's end. Bounded, because processes it left behind may still be writing.
  void drain_all() {
    for (int i = 0; i < 64 && child_->result_fd() >= 0; ++i) drain_results();
    drain_output();
  }

  void pipe_closed() {
    ending_.pipe_closed = true;
    wanted_turn_.reset();
    finish_stage(0);
    allow(supervision_.exit_limit_s, Phase::after_result);
  }

  void receive(std::string_view line) {
    const std::optional<Message> message = parse_message(line);
    if (!message) return;
    std::visit([this](const auto& news) { handle(news); }, *message);
  }

  void handle(const StageBegun& begun) {
    finish_stage(0);
    ending_.stages.push_back({.stage = begun.stage, .started_s = now_s(), .limit_s = begun.limit_s});
    allow(begun.limit_s, Phase::in_stage);
    tell({.stage = begun.stage});
  }
  void handle(const StageDone& done) {
    if (!ending_.stages.empty() && ending_.stages.back().stage == done.stage) finish_stage(done.elapsed_s);
    if (phase_ == Phase::in_stage) allow(supervision_.startup_limit_s, Phase::between_stages);
  }
  void handle(const RoundProgress& progress) {
    if (!ending_.stages.empty()) ending_.rounds[stage()] = {progress.round, now_s() - ending_.stages.back().started_s};
    tell({.stage = stage(), .rounds = progress});
  }
  void handle(const Report& report) {
    ending_.report = report;
    if (!report.is_final) return;
    finish_stage(0);
    allow(supervision_.exit_limit_s, Phase::after_result);
  }
  // No stage runs while a child asks.
  void handle(const TurnWanted& wanted) {
    if (phase_ == Phase::between_stages) wanted_turn_ = wanted.turn;
  }
  // Other messages wait: the child does nothing until it has the answer.
  void handle(const BaselineWanted& wanted) {
    if (request_.own_folder.empty()) return;
    try {
      const std::vector<double> times_ms = time_baseline(request_, wanted, supervision_.executable, for_threads_that_sleep());
      base::write_atomically(std::filesystem::path{request_.own_folder} / baseline_answer, nlohmann::json(times_ms).dump());
    } catch (const base::Error&) {
      // The user interrupts, which is seen again; or there is no process or no room, and the child does not wait for ever.
    }
  }
  void handle(const BaselineTimes&) {}
  void handle(const Crash& crash) { ending_.crash_places = crash.places; }
  void handle(const Unreadable& unreadable) {
    if (ending_.unreadable_lines++ == 0) ending_.first_unreadable = unreadable.excerpt;
  }

  evidence::Stage stage() const { return ending_.stages.empty() ? evidence::Stage::start : ending_.stages.back().stage; }

  void tell(const Progress& progress) const {
    if (supervision_.on_progress) supervision_.on_progress(progress);
  }

  // Ends a stage. Zero: the child did not report how long it took.
  void finish_stage(double elapsed_s) {
    if (ending_.stages.empty() || ending_.stages.back().finished) return;
    evidence::StageRecord& last = ending_.stages.back();
    // The message of a stage's begin may be late: the reported length must not reach into the next stage.
    const double since_begin_s = now_s() - last.started_s;
    last.elapsed_s = elapsed_s > 0 ? std::min(elapsed_s, since_begin_s) : since_begin_s;
    last.finished = elapsed_s > 0 || (ending_.report && ending_.report->is_final);
  }

  void reap() {
    const std::optional<base::ExitState> state = child_->try_wait();
    if (!state) return;
    reaped_ = true;
    ending_.exit = *state;
  }

  void enforce() {
    if (reaped_) return;
    if (ending_.killed_for != KilledFor::nothing) {
      stuck_ = now_s() - killed_at_s_ > unkillable_after_s;
      return;
    }
    const double looked_s = std::exchange(looked_s_, now_s());
    if (supervision_.waits && supervision_.waits()) phase_began_s_ += looked_s_ - std::max(looked_s, phase_began_s_);
    const double elapsed_s = looked_s_ - phase_began_s_;
    if (supervision_.interrupted && supervision_.interrupted()) kill(KilledFor::interrupt, elapsed_s);
    else if (supervision_.deadline && Clock::now() > *supervision_.deadline) kill(KilledFor::suite_deadline, elapsed_s);
    else if (supervision_.alone && supervision_.alone()) kill(KilledFor::lost_rank, elapsed_s);
    else if (!wanted_turn_ && elapsed_s > phase_limit_s_ + supervision_.grace_s) kill(reason_of_lateness(), elapsed_s);
  }

  KilledFor reason_of_lateness() const {
    if (phase_ != Phase::after_result) return KilledFor::stage_limit;
    return ending_.pipe_closed ? KilledFor::silence : KilledFor::slow_exit;
  }

  void kill(KilledFor reason, double elapsed_s) {
    ending_.killed_for = reason;
    ending_.limit_s = phase_limit_s_;
    ending_.grace_s = supervision_.grace_s;
    ending_.elapsed_s = elapsed_s;
    if (reason == KilledFor::suite_deadline) {
      ending_.limit_s = supervision_.suite_limit_s;
      ending_.elapsed_s =
          supervision_.suite_limit_s + std::chrono::duration<double>(Clock::now() - *supervision_.deadline).count();
    }
    ending_.late_stage = phase_ == Phase::starting ? evidence::Stage::start : stage();
    if (reason == KilledFor::slow_exit || reason == KilledFor::silence) ending_.late_stage = evidence::Stage::exit;
    killed_at_s_ = now_s();
    wanted_turn_.reset();
    ending_.stopped = base::is_stopped(child_->pid());
    child_->kill_group(SIGKILL);
  }

  SupervisedRun conclude() {
    if (!reaped_) ending_.stuck = true;
    finish_stage(0);
    ending_.variant = variant_at_work();
    ending_.log_tail = log_.tail();
    ending_.log_name = supervision_.log_name;
    ending_.log_trouble = log_.trouble();
    ending_.log_dropped_bytes = log_.dropped_bytes();
    ending_.unreadable_lines += lines_.overlong_lines();
    ending_.wall_s = now_s() - waited_s_;
    ending_.killed_for_memory = base::memory_kills() > memory_kills_before_;
    const bool interrupted = ending_.killed_for == KilledFor::interrupt, stopped = ending_.stopped;
    return {describe(std::move(ending_)), interrupted, stopped};
  }

  // The child can write anything to the page, so only known variants count.
  std::string variant_at_work() const {
    const std::string name = running_.name();
    const auto named = [&](const Variant* variant) { return variant->name == name; };
    return std::ranges::any_of(pair::all_variants(*entry_.pair), named) ? name : std::string{};
  }

  const pair::Entry& entry_;
  Request request_;
  const Supervision& supervision_;
  std::optional<base::ScratchDirectory> own_folder_;
  pair::RunningVariantPage running_;
  LogCapture log_;
  Clock::time_point started_;
  std::uint64_t memory_kills_before_ = base::memory_kills();
  std::optional<base::Child> child_;
  LineSplitter lines_;
  Ending ending_;
  Phase phase_ = Phase::starting;
  std::optional<Turn> wanted_turn_;  // for which the child waits
  double waited_s_ = 0;              // for turns
  double phase_limit_s_ = 0;
  double phase_began_s_ = 0;
  double looked_s_ = 0;  // when its limits were looked at last
  double killed_at_s_ = 0;
  bool reaped_ = false;
  bool stuck_ = false;
};

}  // namespace

SupervisedRun supervise(const pair::Entry& entry, const Request& request, const Supervision& supervision) {
  return Supervisor{entry, request, supervision}.run();
}

}  // namespace aisp::run
