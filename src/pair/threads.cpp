// SPDX-License-Identifier: Apache-2.0
#include "pair/session.hpp"

#include <sched.h>
#include <aisp/host.hpp>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

namespace aisp::pair {
namespace {

// Longer than the gap between two calls in a measured loop, but short enough not to matter. Given as a time, because a pause
// takes 40 to 140 cycles, and on a busy virtual machine microseconds.
constexpr std::chrono::microseconds longest_spin{200};
constexpr int pauses_between_looks_at_the_clock = 32;

// Returns whether the condition came true while spinning.
template <class Condition>
bool spin_until(const Condition& condition) {
  using Clock = std::chrono::steady_clock;
  for (const Clock::time_point end = Clock::now() + longest_spin; Clock::now() < end;)
    for (int pause = 0; pause < pauses_between_looks_at_the_clock; ++pause) {
      if (condition()) return true;
      pause_cpu();
    }
  return false;
}

std::vector<int> usable_cpus() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return {0};
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

void pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);  // refused in some containers; then the scheduler decides
}

class Team final : public ThreadTeam {
 public:
  Team(int workers, bool pinned) : cpus_{usable_cpus()}, pinned_{pinned}, size_{workers} {
    if (workers < 1) throw std::invalid_argument{"a thread team needs at least one worker"};
    sched_getaffinity(0, sizeof callers_mask_, &callers_mask_);
    for (int worker = 1; worker < workers; ++worker) threads_.emplace_back([this, worker] { serve(worker); });
  }
  ~Team() override {
    stopping_ = true;
    epoch_.fetch_add(1);
    epoch_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  int size() const override { return size_; }

  void run_all(void (*work)(const void* context, int worker), const void* context) override {
    work_ = work;
    context_ = context;
    failure_ = nullptr;
    running_.store(size_ - 1);
    epoch_.fetch_add(1);
    epoch_.notify_all();
    if (pinned_) pin_to(cpus_.front());
    perform(0);
    await_all();
    if (pinned_) sched_setaffinity(0, sizeof callers_mask_, &callers_mask_);
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void serve(int worker) {
    if (pinned_) pin_to(cpus_[static_cast<std::size_t>(worker) % cpus_.size()]);
    for (unsigned seen = 0;;) {
      seen = await_change(seen);
      if (stopping_) return;
      perform(worker);
      if (running_.fetch_sub(1) == 1) running_.notify_one();
    }
  }

  void perform(int worker) {
    try {
      work_(context_, worker);
    } catch (...) {
      const std::scoped_lock lock{failure_mutex_};
      if (!failure_) failure_ = std::current_exception();
    }
  }

  unsigned await_change(unsigned seen) {
    if (!spin_until([&] { return epoch_.load() != seen; })) epoch_.wait(seen);
    return epoch_.load();
  }

  void await_all() {
    if (spin_until([&] { return running_.load() == 0; })) return;
    for (int left = running_.load(); left != 0; left = running_.load()) running_.wait(left);
  }

  std::vector<int> cpus_;
  bool pinned_;
  int size_;
  cpu_set_t callers_mask_{};
  std::atomic<unsigned> epoch_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stopping_{false};
  void (*work_)(const void* context, int worker) = nullptr;
  const void* context_ = nullptr;
  std::exception_ptr failure_;
  std::mutex failure_mutex_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<ThreadTeam> make_thread_team(int workers, bool pinned) { return std::make_unique<Team>(workers, pinned); }

}  // namespace aisp::pair
