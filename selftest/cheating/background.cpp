// SPDX-License-Identifier: Apache-2.0
// Others work for them between their samples: threads, processes.
#include "calls.hpp"
#include "computing_ahead.hpp"
#include "doubling.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <ctime>
#include <vector>

namespace aisp::ch93 {
namespace {

using namespace selftest;

class Shares : public Doubling {
 public:
  explicit Shares(Setup& setup) : Doubling{setup}, kept_(count_) {}
  void copy(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = kept_[i].load(std::memory_order_relaxed);
  }

 protected:
  void keep() {
    for (std::size_t i = 0; i < count_; ++i) kept_[i].store(2 * in_.get()[i], std::memory_order_relaxed);
  }

 private:
  std::vector<std::atomic<float>> kept_;
};

// Computes without end what the next run will hand out.
class ComputesAhead final : public Shares {
 public:
  explicit ComputesAhead(Setup& setup)
      : Shares{setup}, worker_{[this](const std::stop_token& stop) {
          while (!stop.stop_requested()) keep();
        }} {}

 private:
  std::jthread worker_;
};

// Begins in reset, which nobody times; the run only waits for the end.
class BeginsInReset final : public Shares {
 public:
  using Shares::Shares;
  void begin(Launch&) {
    kept_all_ = false;
    worker_ = std::jthread{[this] {
      keep();
      kept_all_ = true;
      kept_all_.notify_all();
    }};
    kept_all_.wait(false);  // on a busy machine it might otherwise begin so late that it computes from the run's own inputs
  }
  void wait(Launch& launch) {
    if (worker_.joinable()) worker_.join();
    copy(launch);
  }

 private:
  std::atomic<bool> kept_all_{false};
  std::jthread worker_;
};

class AnswersLate final : public Doubling {
 public:
  using Doubling::Doubling;
  ~AnswersLate() override { stop(); }
  void in_a_moment(Launch&) {
    stop();
    worker_ = std::jthread{[this] {
      std::this_thread::sleep_for(std::chrono::milliseconds{2});
      fill_doubled();
    }};
  }

 private:
  void stop() {
    if (worker_.joinable()) worker_.join();
  }
  std::jthread worker_;
};

// Of the calling thread.
double own_cpu_ms() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

// A thread that computes for a while after each run, and would compute what comes next if it could know that.
class WorksOn final : public Doubling {
 public:
  explicit WorksOn(Setup& setup) : Doubling{setup}, worker_{[this](const std::stop_token& stop) { work(stop); }} {}
  void after_each_run(Launch&) {
    fill_doubled();
    runs_.fetch_add(1);
  }

 private:
  void work(const std::stop_token& stop) {
    for (int seen = 0; !stop.stop_requested();) {
      if (runs_.load() == seen) {
        std::this_thread::sleep_for(std::chrono::microseconds{20});
        continue;
      }
      seen = runs_.load();
      for (const double until_ms = own_cpu_ms() + 2; !stop.stop_requested() && own_cpu_ms() < until_ms;) {
      }
    }
  }
  std::atomic<int> runs_{0};
  std::jthread worker_;
};

// The same in a process of its own, whose CPU time is in no account of this one.
class HasAChild final : public Doubling {
 public:
  explicit HasAChild(Setup& setup) : Doubling{setup} {
    void* const memory = ::mmap(nullptr, sizeof *runs_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) runs_ = new (memory) std::atomic<int>{0};
    const pid_t parent = ::getpid();
    child_ = ::fork();
    if (child_ == 0) work(parent);
  }
  ~HasAChild() override {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    ::munmap(runs_, sizeof *runs_);
  }
  void that_works(Launch&) {
    fill_doubled();
    runs_->fetch_add(1);
  }

 private:
  [[noreturn]] void work(pid_t parent) {
    for (int seen = 0; ::getppid() == parent;) {
      if (runs_->load() == seen) {
        ::usleep(20);
        continue;
      }
      seen = runs_->load();
      for (const double until_ms = own_cpu_ms() + 2; own_cpu_ms() < until_ms;) {
      }
    }
    ::_exit(0);
  }
  std::atomic<int>* runs_ = nullptr;
  pid_t child_ = -1;
};

// A process of its own that has the same memory, and whose pieces of work are too short to be seen while all should be idle.
class ChildComputesAhead final : public Shares {
 public:
  explicit ChildComputesAhead(Setup& setup)
      : Shares{setup}, kept_of_{in_.get(), count_}, child_{[this] {
          if (!kept_of_.is_present()) kept_of_.renew([this] { keep(); });
        }} {}
  void what_it_has(Launch& launch) {
    while (!kept_of_.is_present()) rest();
    copy(launch);
  }

 private:
  KeptOf kept_of_;
  Twin child_;
};

constexpr Expected works_between = fails("measurement/background_work", "verify/background_work", "reverify/background_work");

}  // namespace

extern constinit const selftest::Case computed_ahead =
    pair_of<&Shares::copy, ComputesAhead>({.does = "has a thread compute without end, and hands out what it has got",
                                           .must = fails("verify/background_work", "measurement/background_work",
                                                         "measurement/timed_samples", "verify/reference", "verify/second_run")});
extern constinit const selftest::Case begun_in_reset =
    pair_of<&BeginsInReset::wait>({.does = "starts a thread in reset that has computed all when the run begins",
                                   .must = stale_at_times,
                                   .reset = call<&BeginsInReset::begin>});
extern constinit const selftest::Case late_answer = pair_of<&AnswersLate::in_a_moment>(
    {.does = "leaves the work to a thread and returns",
     .must = fails("verify/written", "verify/finished", "verify/second_run", "measurement/timed_samples")});
extern constinit const selftest::Case thread_works_on =
    pair_of<&WorksOn::after_each_run>({.does = "has a thread work on for 2 ms after each run", .must = works_between});
extern constinit const selftest::Case child_works_on =
    pair_of<&HasAChild::that_works>({.does = "has a child process work on for 2 ms after each run",
                                     .must = fails("measurement/background_work", "verify/background_work",
                                                   "reverify/background_work", "measurement/child_work")});
extern constinit const selftest::Case child_computes_ahead = pair_of<&ChildComputesAhead::what_it_has>(
    {.does = "has a child process compute whenever inputs change, and copies what it has got",
     .must = fails("measurement/child_work", "measurement/timed_differently")});

}  // namespace aisp::ch93
