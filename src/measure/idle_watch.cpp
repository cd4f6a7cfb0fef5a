// SPDX-License-Identifier: Apache-2.0
#include "measure/idle_watch.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace aisp::measure {
namespace {

using namespace std::chrono_literals;

// Whoever spins for its next call is asleep after that.
constexpr auto grace = 500us;
constexpr auto window = 3500us;
// Who was seen at work, but not for long, may have been waiting for a CPU.
constexpr int most_windows = 4;
constexpr double least_doubtful_ms = 0.1;

std::optional<double> milliseconds_of(clockid_t clock) {
  timespec time{};
  if (clock_gettime(clock, &time) != 0) return std::nullopt;
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

// The clock of a thread by its id, as clock_getcpuclockid makes that of a process: Linux keeps the complement above three bits,
// of which 2 says scheduler time and 4 one thread.
clockid_t clock_of_thread(pid_t thread) { return static_cast<clockid_t>(~static_cast<unsigned>(thread) << 3 | 6); }

std::vector<pid_t> threads_of(const std::string& process) {
  std::vector<pid_t> threads;
  std::error_code gone;
  for (std::filesystem::directory_iterator task{"/proc/" + process + "/task", gone}, end; !gone && task != end;
       task.increment(gone)) {
    const std::string name = task->path().filename();
    pid_t thread = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), thread).ec == std::errc{}) threads.push_back(thread);
  }
  return threads;
}

void add_children(const std::string& process, const std::vector<pid_t>& threads, std::map<pid_t, double>& children_ms) {
  for (const pid_t thread : threads) {
    std::ifstream list{"/proc/" + process + "/task/" + std::to_string(thread) + "/children"};
    for (pid_t child = 0; list >> child;) {
      clockid_t clock{};
      if (clock_getcpuclockid(child, &clock) != 0) continue;
      if (const auto ms = milliseconds_of(clock)) children_ms[child] = *ms;
      add_children(std::to_string(child), threads_of(std::to_string(child)), children_ms);
    }
  }
}

double since(const std::map<pid_t, double>& before_ms, pid_t id, double now_ms) {
  const auto found = before_ms.find(id);
  return found == before_ms.end() ? now_ms : now_ms - found->second;
}

}  // namespace

IdleWatch::IdleWatch() {
  std::this_thread::sleep_for(grace);
  before_ = used();
  start_ = std::chrono::steady_clock::now();
}

// Threads first: Linux brings the account of a running thread up to date when its own clock is asked, not when that of its
// process is, which lags by a tick otherwise. That of a child lags as long as the child runs.
IdleWatch::Used IdleWatch::used() {
  Used used;
  const auto caller = static_cast<pid_t>(::syscall(SYS_gettid));
  const std::vector<pid_t> threads = threads_of("self");
  add_children("self", threads, used.children_ms);
  for (const pid_t thread : threads)
    if (thread != caller)
      if (const auto ms = milliseconds_of(clock_of_thread(thread))) used.threads_ms[thread] = *ms;
  used.process_ms = milliseconds_of(CLOCK_PROCESS_CPUTIME_ID).value_or(0);
  used.caller_ms = milliseconds_of(CLOCK_THREAD_CPUTIME_ID).value_or(0);
  return used;
}

double IdleWatch::busiest_ms() const {
  double busiest_ms = 0;
  for (int windows = 1; windows <= most_windows; ++windows) {
    std::this_thread::sleep_until(start_ + windows * window);
    busiest_ms = busiest_ms_by_now();
    if (busiest_ms < least_doubtful_ms || busiest_ms > most_spinning_ms) break;
  }
  return busiest_ms;
}

double IdleWatch::busiest_ms_by_now() const {
  const Used after = used();
  double busiest_ms = 0, living_ms = 0;
  for (const auto& [thread, now_ms] : after.threads_ms) {
    const double used_ms = since(before_.threads_ms, thread, now_ms);
    busiest_ms = std::max(busiest_ms, used_ms);
    living_ms += used_ms;
  }
  for (const auto& [child, now_ms] : after.children_ms)
    busiest_ms = std::max(busiest_ms, since(before_.children_ms, child, now_ms));
  const double ended_ms = after.process_ms - before_.process_ms - (after.caller_ms - before_.caller_ms) - living_ms;
  return std::max(busiest_ms, ended_ms);
}

}  // namespace aisp::measure
