// SPDX-License-Identifier: Apache-2.0
// A pod is granted a part of a node's CPUs, but what a program counts first are the CPUs of the node. A pool of that size has
// several workers to a CPU, and at each barrier all of them must get their turn. A pool of the granted size, one worker to a CPU,
// meets at once. How long workers spin before they sleep follows GCC's OpenMP runtime, which gives up soon where it knows of more
// threads than CPUs; the control node_cpus_active does not, as with OMP_WAIT_POLICY=active: whoever is early spins on the very
// CPU that the others need. Here the node is what this process may use, and the pod, a quarter of it, is made by CPU affinity, as
// the static CPU manager makes it.
#include <aisp/host.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "limits.hpp"

namespace aisp::ch03 {
namespace {

constexpr std::size_t steps = 8;
// GOMP_SPINCOUNT's defaults (GNU libgomp manual, 3.22): with a CPU for each thread, and with more threads than CPUs.
constexpr int spins_with_own_cpu = 300000, spins_when_crowded = 100;
constexpr std::int32_t lowest = std::numeric_limits<std::int32_t>::min();

// Workers that meet at barriers and, like those of an OpenMP runtime, spin before they sleep, there and between two regions.
class SpinningPool {
 public:
  // Workers may use the CPUs of the thread that makes the pool, or one each of `own_cpus`.
  SpinningPool(int workers, int spins, const std::vector<int>& own_cpus = {}) : size_{workers}, spins_{spins} {
    for (int worker = 0; worker < workers; ++worker) {
      const int cpu = own_cpus.empty() ? -1 : own_cpus[static_cast<std::size_t>(worker)];
      threads_.emplace_back([this, worker, cpu] { serve(worker, cpu); });
    }
  }
  ~SpinningPool() {
    stopping_ = true;
    region_.fetch_add(1);
    region_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  int size() const { return size_; }

  // work(worker) on every worker; the caller sleeps meanwhile.
  void run(const std::function<void(int)>& work) {
    work_ = &work;
    finished_ = 0;
    const unsigned before = done_.load();
    region_.fetch_add(1);
    region_.notify_all();
    done_.wait(before);
  }

  void barrier() {
    const unsigned phase = phase_.load();
    if (arrived_.fetch_add(1) + 1 == size_) {
      arrived_ = 0;
      phase_.fetch_add(1);
      phase_.notify_all();
    } else if (!spin_until_changed(phase_, phase)) {
      phase_.wait(phase);
    }
  }

  // Returns when no worker spins any more.
  void settle() const {
    while (asleep_.load() != size_) std::this_thread::sleep_for(std::chrono::microseconds{200});
  }

 private:
  bool spin_until_changed(const std::atomic<unsigned>& value, unsigned seen) const {
    for (int spin = 0; spin < spins_; ++spin) {
      if (value.load(std::memory_order_acquire) != seen) return true;
      pause_cpu();
    }
    return false;
  }
  void serve(int worker, int cpu) {
    if (cpu >= 0) run_only_on({cpu});
    for (unsigned seen = 0;; ++seen) {
      if (!spin_until_changed(region_, seen)) {
        asleep_.fetch_add(1);
        region_.wait(seen);
        asleep_.fetch_sub(1);
      }
      if (stopping_) return;
      (*work_)(worker);
      if (finished_.fetch_add(1) + 1 == size_) {
        done_.fetch_add(1);
        done_.notify_one();
      }
    }
  }

  int size_, spins_;
  const std::function<void(int)>* work_ = nullptr;
  std::atomic<bool> stopping_{false};
  std::atomic<int> asleep_{0}, finished_{0};
  alignas(128) std::atomic<unsigned> region_{0};
  alignas(128) std::atomic<unsigned> phase_{0};
  alignas(128) std::atomic<int> arrived_{0};
  alignas(128) std::atomic<unsigned> done_{0};
  std::vector<std::thread> threads_;
};

std::int32_t maximum_of(const std::int32_t* first, const std::int32_t* last) {
  std::int32_t maximum = lowest;
  for (; first != last; ++first) maximum = *first > maximum ? *first : maximum;
  return maximum;
}

class Kubernetes final : public Workload {
 public:
  explicit Kubernetes(Setup& setup)
      : count_{setup.scaled(std::size_t{1} << 20, 64)},
        values_{setup.input<std::int32_t>(steps * count_, integers(lowest, std::numeric_limits<std::int32_t>::max()))},
        maxima_{setup.output<std::int32_t>(steps)},
        partial_(usable_cpus().size()) {
    const AffinityGuard outside_the_pod;
    std::vector<int> granted = usable_cpus();
    granted.resize(std::max<std::size_t>(1, granted.size() / 4));
    run_only_on(granted);
    const auto node = static_cast<int>(partial_.size());
    node_pool_ = std::make_unique<SpinningPool>(node, spins_when_crowded);
    active_pool_ = std::make_unique<SpinningPool>(node, spins_with_own_cpu);
    const std::vector<int> own = cpus_to_use();
    granted_pool_ = std::make_unique<SpinningPool>(static_cast<int>(own.size()), spins_with_own_cpu, own);
  }

  Cost cost() const override { return {.host_bytes = static_cast<double>(values_.bytes() + maxima_.bytes())}; }
  double expected(std::size_t index) const override {
    std::int32_t maximum = lowest;
    for (std::size_t i = index * count_; i < (index + 1) * count_; ++i) maximum = std::max(maximum, values_.host(i));
    return maximum;
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    const SpinningPool& pool = variant == "granted_cpus" ? *granted_pool_ : *node_pool_;
    metrics.report("workers", pool.size(), "", Metrics::Better::lower);
    metrics.report("granted_cpus", granted_pool_->size(), "", Metrics::Better::higher);
  }

  // Workers that still spin after one sample would take CPU time from the next.
  void settle(Launch&) {
    for (const auto* pool : {&node_pool_, &active_pool_, &granted_pool_}) (*pool)->settle();
  }
  void node_cpus(Launch&) { reduce(*node_pool_); }
  void node_cpus_active(Launch&) { reduce(*active_pool_); }
  void granted_cpus(Launch&) { reduce(*granted_pool_); }

 private:
  // Returns the CPUs that a program in a pod should use: the affinity names them, and cpu.max may grant less time than all of
  // them have.
  static std::vector<int> cpus_to_use() {
    std::vector<int> cpus = usable_cpus();
    if (const double quota = cpu_quota(); quota < static_cast<double>(cpus.size()))
      cpus.resize(std::max<std::size_t>(1, static_cast<std::size_t>(quota)));
    return cpus;
  }

  // After the barrier of a step worker 0 has all partial results of it; the next step keeps its own in other places.
  void reduce(SpinningPool& pool) {
    const auto workers = static_cast<std::size_t>(pool.size());
    pool.run([&](int worker) {
      const auto w = static_cast<std::size_t>(worker);
      for (std::size_t step = 0; step < steps; ++step) {
        const std::int32_t* values = values_ + step * count_;
        partial_[w].maximum[step] = maximum_of(values + count_ * w / workers, values + count_ * (w + 1) / workers);
        pool.barrier();
        if (w == 0) maxima_[step] = merged(step, workers);
      }
    });
  }
  std::int32_t merged(std::size_t step, std::size_t workers) const {
    std::int32_t maximum = lowest;
    for (std::size_t w = 0; w < workers; ++w) maximum = std::max(maximum, partial_[w].maximum[step]);
    return maximum;
  }

  struct alignas(128) Partial {
    std::array<std::int32_t, steps> maximum;
  };

  std::size_t count_;  // of one step
  Input<std::int32_t> values_;
  Output<std::int32_t> maxima_;
  std::vector<Partial> partial_;
  std::unique_ptr<SpinningPool> node_pool_, active_pool_, granted_pool_;
};

}  // namespace

extern constinit const Pair kubernetes{
    .teaches = "a pod gets part of a node; a pool sized by the node's CPU count has workers wait for a CPU at each barrier",
    .lesson = "granted_cpus",
    .make = make<Kubernetes>,
    .baseline = {.name = "node_cpus", .run = call<&Kubernetes::node_cpus>, .reset = call<&Kubernetes::settle>},
    .optimized = variants({{.name = "granted_cpus", .run = call<&Kubernetes::granted_cpus>, .reset = call<&Kubernetes::settle>}}),
    .controls =
        variants({{.name = "node_cpus_active", .run = call<&Kubernetes::node_cpus_active>, .reset = call<&Kubernetes::settle>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .needs = {.cpus = 2},
};

}  // namespace aisp::ch03
