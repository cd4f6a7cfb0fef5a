// SPDX-License-Identifier: Apache-2.0
// Every step gives each core 256 KiB to scale and to sum up, work of some fifty microseconds, and a thread costs about as much to
// start and to join. Workers that outlive the step need only a signal: waking them from sleep costs a system call and a switch
// on each core; workers that watch a counter for a while before they sleep see the next step at once. One thread, which starts
// nothing, is the control: where it beats new threads in every step, starting them costs more than they bring. The metric
// slowest_loops is the lower bound: the time of the slowest worker's loop, summed over the steps.
#include <aisp/host.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

namespace aisp::ch01 {
namespace {

// In a run; fewer where a step starts many threads, because each of them takes long to start then.
constexpr std::size_t steps_of_few = 100, steps_of_many = 10, many_cpus = 32;

using Work = std::function<void(std::size_t worker)>;

// Worker 0 is the caller. One barrier starts a step and ends it; who waits there sleeps.
class SleepingPool {
 public:
  explicit SleepingPool(std::size_t workers) : barrier_{static_cast<std::ptrdiff_t>(workers)} {
    for (std::size_t worker = 1; worker < workers; ++worker) threads_.emplace_back([this, worker] { serve(worker); });
  }
  ~SleepingPool() {
    work_ = nullptr;
    barrier_.arrive_and_wait();
    for (std::thread& thread : threads_) thread.join();
  }
  void run(const Work& work) {
    work_ = &work;
    barrier_.arrive_and_wait();
    work(0);
    barrier_.arrive_and_wait();
  }

 private:
  void serve(std::size_t worker) {
    for (barrier_.arrive_and_wait(); work_ != nullptr; barrier_.arrive_and_wait()) {
      (*work_)(worker);
      barrier_.arrive_and_wait();
    }
  }

  const Work* work_ = nullptr;  // written and read on different sides of the barrier
  std::barrier<> barrier_;
  std::vector<std::thread> threads_;
};

// Returns when `value` is no longer `old`. A pause takes some ten to forty nanoseconds, so all of them are about as long as a
// step of this workload: workers on cores of their own never sleep, and a core that others need is given back.
void await_change(const std::atomic<unsigned>& value, unsigned old) {
  constexpr int most_polls = 4000;
  for (int poll = 0; poll < most_polls; ++poll) {
    if (value.load(std::memory_order_acquire) != old) return;
    // Should both sides share a core for a moment, watching would hold up what is watched.
    if (poll % 256 == 255) std::this_thread::yield();
    else pause_cpu();
  }
  value.wait(old, std::memory_order_acquire);
}

// The caller counts an epoch up to start a step; the workers count down to end it. Each counter has cache lines of its own.
class SpinningPool {
 public:
  explicit SpinningPool(std::size_t workers) {
    for (std::size_t worker = 1; worker < workers; ++worker) threads_.emplace_back([this, worker] { serve(worker); });
  }
  ~SpinningPool() {
    start(nullptr);
    for (std::thread& thread : threads_) thread.join();
  }
  void run(const Work& work) {
    busy_.store(static_cast<unsigned>(threads_.size()), std::memory_order_relaxed);
    start(&work);
    work(0);
    for (unsigned left; (left = busy_.load(std::memory_order_acquire)) != 0;) await_change(busy_, left);
  }

 private:
  void start(const Work* work) {
    work_ = work;
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();  // no system call unless somebody sleeps
  }
  void serve(std::size_t worker) {
    for (unsigned seen = 0;; ++seen) {
      await_change(epoch_, seen);
      if (work_ == nullptr) return;
      (*work_)(worker);
      if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
    }
  }

  const Work* work_ = nullptr;  // published by epoch_
  alignas(128) std::atomic<unsigned> epoch_{0};
  alignas(128) std::atomic<unsigned> busy_{0};
  std::vector<std::thread> threads_;
};

class ThreadPool final : public Workload {
 public:
  explicit ThreadPool(Setup& setup)
      : workers_{static_cast<std::size_t>(setup.cpus())},
        steps_{workers_ < many_cpus ? steps_of_few : steps_of_many},
        share_{setup.scaled(std::size_t{64} << 10, 64)},
        values_{setup.input<float>(workers_ * share_, uniform(0, 1))},
        scaled_{setup.output<float>(workers_ * share_)},
        sums_{setup.output<double>(steps_ * workers_)},
        loop_ns_(steps_ * workers_),
        sleeping_{workers_},
        spinning_{workers_} {}

  Cost cost() const override { return {.host_bytes = static_cast<double>(values_.bytes() + scaled_.bytes() + sums_.bytes())}; }
  double expected_output(int output, std::size_t index) const override {
    if (output == 0) return factor(steps_ - 1) * values_.host(index);  // the last step's
    return factor(index / workers_) * share_sums_[index % workers_];
  }
  void compute_reference(Launch&) override {
    share_sums_.assign(workers_, 0);
    for (std::size_t i = 0; i < workers_ * share_; ++i) share_sums_[i / share_] += values_.host(i);
  }
  void metrics(std::string_view, Metrics& metrics) override {
    double sum_ns = 0;
    for (std::size_t step = 0; step < steps_; ++step)
      sum_ns += *std::max_element(loop_ns_.begin() + static_cast<std::ptrdiff_t>(step * workers_),
                                  loop_ns_.begin() + static_cast<std::ptrdiff_t>((step + 1) * workers_));
    metrics.report("slowest_loops", sum_ns * 1e-6, "ms", Metrics::Better::lower);
  }

  void thread_per_step(Launch&) {
    for (std::size_t step = 0; step < steps_; ++step) {
      std::vector<std::thread> threads;
      for (std::size_t worker = 0; worker < workers_; ++worker)
        threads.emplace_back([this, step, worker] { scale_and_sum(step, worker); });
      for (std::thread& thread : threads) thread.join();
    }
  }
  void one_thread(Launch&) {
    for (std::size_t step = 0; step < steps_; ++step)
      for (std::size_t worker = 0; worker < workers_; ++worker) scale_and_sum(step, worker);
  }
  void sleeping_pool(Launch&) { run_steps(sleeping_); }
  void spinning_pool(Launch&) { run_steps(spinning_); }

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr float factor(std::size_t step) { return 1.0f + static_cast<float>(step) / 128; }

  template <class Pool>
  void run_steps(Pool& pool) {
    for (std::size_t step = 0; step < steps_; ++step) pool.run([this, step](std::size_t worker) { scale_and_sum(step, worker); });
  }

  void scale_and_sum(std::size_t step, std::size_t worker) {
    const Clock::time_point start = Clock::now();
    const float* const values = values_ + worker * share_;
    float* const scaled = scaled_ + worker * share_;
    const float by = factor(step);
    double sum = 0;
    for (std::size_t i = 0; i < share_; ++i) {
      scaled[i] = by * values[i];
      sum += static_cast<double>(scaled[i]);
    }
    sums_[step * workers_ + worker] = sum;
    loop_ns_[step * workers_ + worker] = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
  }

  std::size_t workers_, steps_, share_;
  Input<float> values_;
  Output<float> scaled_;
  Output<double> sums_;
  std::vector<double> loop_ns_;
  std::vector<double> share_sums_;
  SleepingPool sleeping_;
  SpinningPool spinning_;
};

}  // namespace

extern constinit const Pair thread_pool{
    .teaches = "starting and joining threads costs tens of microseconds each, so workers should outlive the step",
    .lesson = "sleeping_pool",
    .make = make<ThreadPool>,
    .baseline = {.name = "thread_per_step", .run = call<&ThreadPool::thread_per_step>},
    .optimized = variants({{.name = "sleeping_pool", .run = call<&ThreadPool::sleeping_pool>},
                           {.name = "spinning_pool", .run = call<&ThreadPool::spinning_pool>}}),
    .controls = variants({{.name = "one_thread", .run = call<&ThreadPool::one_thread>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = within(1e-5, 1e-5),
    .needs = {.cpus = 2},
};

}  // namespace aisp::ch01
