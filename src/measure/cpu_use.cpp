// SPDX-License-Identifier: Apache-2.0
#include "measure/cpu_use.hpp"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <filesystem>
#include <fstream>

namespace aisp::measure {
namespace {

// Thread clocks are not read at the same moment.
constexpr double least_of_ended_ms = 0.02;

std::optional<double> milliseconds_of(clockid_t clock) {
  timespec time{};
  if (clock_gettime(clock, &time) != 0) return std::nullopt;
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

// Returns the clock of a thread by its id, as clock_getcpuclockid does for a process: Linux keeps the complement above three
// bits, of which 2 says scheduler time and 4 one thread.
clockid_t clock_of_thread(pid_t thread) { return static_cast<clockid_t>(~static_cast<unsigned>(thread) << 3 | 6); }

void add_waits(const std::string& process, std::map<pid_t, double>& waited_ms) {
  for (const pid_t thread : threads_of(process)) {
    std::ifstream counts{"/proc/" + process + "/task/" + std::to_string(thread) + "/schedstat"};
    double ran_ns = 0, waited_ns = 0;
    if (counts >> ran_ns >> waited_ns) waited_ms[thread] = waited_ns * 1e-6;
  }
}

std::map<pid_t, double> waited_by_now_ms() {
  std::map<pid_t, double> waited_ms;
  add_waits("self", waited_ms);
  for (const auto& [child, used_ms] : living_children_ms()) add_waits(std::to_string(child), waited_ms);
  return waited_ms;
}

void add_children(const std::string& process, std::map<pid_t, double>& children_ms) {
  for (const pid_t thread : threads_of(process)) {
    std::ifstream list{"/proc/" + process + "/task/" + std::to_string(thread) + "/children"};
    for (pid_t child = 0; list >> child;) {
      clockid_t clock{};
      if (clock_getcpuclockid(child, &clock) != 0) continue;
      if (const auto ms = milliseconds_of(clock)) children_ms[child] = *ms;
      add_children(std::to_string(child), children_ms);
    }
  }
}

// Parses "12345 (a name) R 1 ...".
bool is_runnable(const std::string& process, pid_t thread) {
  std::ifstream file{"/proc/" + process + "/task/" + std::to_string(thread) + "/stat"};
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');
  return name_end != std::string::npos && line.compare(name_end, 3, ") R") == 0;
}

// Parses "0.52 0.58 0.59 3/692 12345": 3 of 692 threads are runnable, this one included.
bool more_threads_than_cpus() {
  std::ifstream load{"/proc/loadavg"};
  double average = 0;
  int runnable = 0;
  if (!(load >> average >> average >> average >> runnable)) return false;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return false;
  return runnable > CPU_COUNT(&allowed);
}

}  // namespace

double ms_since(const std::map<pid_t, double>& before_ms, pid_t id, double now_ms) {
  const auto found = before_ms.find(id);
  return found == before_ms.end() ? now_ms : now_ms - found->second;
}

double cpu_ms_of_caller() { return milliseconds_of(CLOCK_THREAD_CPUTIME_ID).value_or(0); }
double cpu_ms_of_process() { return milliseconds_of(CLOCK_PROCESS_CPUTIME_ID).value_or(0); }

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

std::map<pid_t, double> living_children_ms() {
  std::map<pid_t, double> children_ms;
  add_children("self", children_ms);
  return children_ms;
}

double ended_children_ms() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto milliseconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) * 1e-3;
  };
  return milliseconds(usage.ru_utime) + milliseconds(usage.ru_stime);
}

bool others_are_runnable() {
  const auto caller = static_cast<pid_t>(::syscall(SYS_gettid));
  const auto any_of = [&](const std::string& process) {
    return std::ranges::any_of(threads_of(process),
                               [&](pid_t thread) { return thread != caller && is_runnable(process, thread); });
  };
  if (any_of("self")) return true;
  return std::ranges::any_of(living_children_ms(), [&](const auto& child) { return any_of(std::to_string(child.first)); });
}

// Reads threads first: Linux updates a running thread's time when its own clock is read; the process's clock alone would lag by a
// tick.
CpuUse CpuUse::now() {
  CpuUse use;
  const auto caller = static_cast<pid_t>(::syscall(SYS_gettid));
  for (const pid_t thread : threads_of("self"))
    if (thread != caller)
      if (const auto ms = milliseconds_of(clock_of_thread(thread))) use.threads_ms[thread] = *ms;
  use.process_ms = milliseconds_of(CLOCK_PROCESS_CPUTIME_ID).value_or(0);
  use.caller_ms = milliseconds_of(CLOCK_THREAD_CPUTIME_ID).value_or(0);
  return use;
}

double CpuUse::of_thread_since(const CpuUse& before, pid_t thread) const {
  return ms_since(before.threads_ms, thread, threads_ms.at(thread));
}

double CpuUse::of_ended_since(const CpuUse& before) const {
  double ended_ms = process_ms - before.process_ms - (caller_ms - before.caller_ms);
  for (const auto& [thread, now_ms] : threads_ms) ended_ms -= of_thread_since(before, thread);
  return ended_ms;
}

CpuWait::CpuWait() : children_ms_{ended_children_ms()}, use_{CpuUse::now()}, waited_ms_{waited_by_now_ms()} {}

std::optional<double> CpuWait::ms() const {
  if (more_threads_than_cpus()) {
    const double ended_ms = CpuUse::now().of_ended_since(use_) + ended_children_ms() - children_ms_;
    if (ended_ms > least_of_ended_ms) return std::nullopt;
  }
  double waited_ms = 0;
  for (const auto& [thread, now_ms] : waited_by_now_ms()) waited_ms += ms_since(waited_ms_, thread, now_ms);
  return waited_ms;
}

}  // namespace aisp::measure
