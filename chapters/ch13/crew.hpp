// SPDX-License-Identifier: Apache-2.0
// Threads that work on one job at a time beside the thread that gave it to them, and sleep between jobs.
#pragma once
#include <aisp/function.hpp>

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace aisp::ch13 {

class Crew {
 public:
  using Job = Function<void(int worker)>;

  explicit Crew(int workers) {
    for (int worker = 0; worker < workers; ++worker) threads_.emplace_back([this, worker] { serve(worker); });
  }
  ~Crew() {
    is_stopping_ = true;
    ++jobs_;
    jobs_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Gives every worker the job and returns at once. The job before must have been waited for.
  void start(Job job) {
    job_ = std::move(job);
    busy_ = static_cast<int>(threads_.size());
    ++jobs_;
    jobs_.notify_all();
  }
  // Until all workers are done; throws what one of them threw.
  void wait() {
    for (int busy = busy_; busy != 0; busy = busy_) busy_.wait(busy);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  void serve(int worker) {
    for (unsigned seen = 0;;) {
      jobs_.wait(seen);
      seen = jobs_;
      if (is_stopping_) return;
      try {
        job_(worker);
      } catch (...) {
        const std::lock_guard lock{mutex_};
        error_ = std::current_exception();
      }
      if (--busy_ == 0) busy_.notify_all();
    }
  }

  Job job_;
  std::atomic<unsigned> jobs_{0};
  std::atomic<int> busy_{0};
  std::atomic<bool> is_stopping_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace aisp::ch13
