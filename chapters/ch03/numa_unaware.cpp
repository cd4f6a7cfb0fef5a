// SPDX-License-Identifier: Apache-2.0
// Every sweep updates all shards, and a shard fits the cache of one core. Threads that claim shards from a counter get other ones
// in each sweep, so a shard's lines move from core to core; and as one thread has touched all pages first, they lie on its node.
// Pinned threads that touch their own shards first and keep them find the lines in their cache and the pages on their node.
// On a machine of one node only the caches show.
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <aisp/host.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <system_error>
#include <vector>

namespace aisp::ch03 {
namespace {

// A sweep ends when the last thread does, and of many one is always late, so there are fewer sweeps where there are many.
constexpr std::size_t most_sweeps = 128, fewest_sweeps = 32, updates_in_all = 2048;
constexpr std::size_t largest_page = 65536;  // some ARM kernels; a page must not hold two shards

// Ordinary pages: a page of 2 MiB would hold several shards, and it lies on one node only.
class ShardMemory {
 public:
  explicit ShardMemory(std::size_t bytes) : bytes_{bytes} {
    address_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address_ == MAP_FAILED) throw std::system_error{errno, std::generic_category(), "cannot map memory for the shards"};
    ::madvise(address_, bytes, MADV_NOHUGEPAGE);
  }
  ~ShardMemory() { ::munmap(address_, bytes_); }
  ShardMemory(const ShardMemory&) = delete;
  ShardMemory& operator=(const ShardMemory&) = delete;
  float* data() const { return static_cast<float*>(address_); }

 private:
  std::size_t bytes_;
  void* address_;
};

// Polls, because a sweep is shorter than a wake-up; gives the CPU away when the thread it waits for may need it.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_{threads} {}
  void arrive_and_wait() {
    const unsigned phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    for (int spin = 0; phase_.load(std::memory_order_acquire) == phase; ++spin) spin < 4000 ? pause_cpu() : void(::sched_yield());
  }

 private:
  int threads_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};
};

// The CPU that updated a shard last. Written by the thread that has the shard; the barrier hands it on.
struct alignas(64) Whereabouts {
  unsigned cpu = ~0u;
  unsigned node = 0;
  unsigned migrations = 0;

  void visit() {
    unsigned now = 0;
    if (::getcpu(&now, &node) != 0) return;
    migrations += cpu != ~0u && cpu != now;
    cpu = now;
  }
};

// The node that a page lies on; negative where the kernel does not tell (containers often refuse the question).
int node_of(const void* page) {
  constexpr unsigned long node_of_address = 1 | 2;  // MPOL_F_NODE | MPOL_F_ADDR
  int node = -1;
  return ::syscall(SYS_get_mempolicy, &node, nullptr, 0ul, page, node_of_address) == 0 ? node : -1;
}

// Unrolled and with wide vectors where the processor has them: otherwise instructions limit a sweep and hide where its data come
// from.
[[gnu::always_inline]] inline void add_to_each(float* values, std::size_t count, float step) {
#pragma GCC unroll 8
  for (std::size_t i = 0; i < count; ++i) values[i] += step;
}
#if defined(__x86_64__)
[[gnu::target("avx2")]] void add_to_each_avx2(float* values, std::size_t count, float step) { add_to_each(values, count, step); }
#endif
void add_step(float* values, std::size_t count, float step) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return add_to_each_avx2(values, count, step);
#endif
  add_to_each(values, count, step);
}

class NumaUnaware final : public Workload {
 public:
  explicit NumaUnaware(Setup& setup)
      : workers_{setup.cpus()},
        sweeps_{std::clamp(updates_in_all / static_cast<std::size_t>(workers_), fewest_sweeps, most_sweeps)},
        shard_{setup.scaled(std::size_t{1} << 17, largest_page / sizeof(float))},
        initial_{setup.input<float>(shard_ * shards(), uniform(-1, 1))},
        steps_{setup.input<float>(sweeps_, uniform(-1, 1))},
        result_{setup.output<float>(shard_ * shards())},
        unpinned_{setup.threads(workers_, false)},
        pinned_{setup.threads(workers_)},
        whereabouts_(shards()) {}

  Cost cost() const override { return {.host_bytes = static_cast<double>(initial_.bytes() + steps_.bytes() + result_.bytes())}; }
  // One rounding per sweep, to float, as the updates do.
  double expected(std::size_t index) const override {
    auto value = static_cast<float>(initial_.host(index));
    for (std::size_t sweep = 0; sweep < sweeps_; ++sweep) value += static_cast<float>(steps_.host(sweep));
    return value;
  }

  // Once: it is the first touch that places a page.
  void touch_all_here(Launch&) {
    if (shared_) return;
    shared_ = std::make_unique<ShardMemory>(initial_.bytes());
    std::fill_n(shared_->data(), initial_.size(), 0.0f);
  }
  void touch_by_owner(Launch&) {
    if (local_) return;
    local_ = std::make_unique<ShardMemory>(initial_.bytes());
    pinned_.run([this](int worker) { std::fill_n(local_->data() + shard_ * static_cast<std::size_t>(worker), shard_, 0.0f); });
  }

  void shared_counter(Launch&) {
    start(*shared_);
    Barrier barrier{workers_};
    std::vector<std::atomic<std::size_t>> next(sweeps_);
    unpinned_.run([&](int) {
      for (std::size_t sweep = 0; sweep < sweeps_; ++sweep) {
        for (std::size_t shard; (shard = next[sweep].fetch_add(1, std::memory_order_relaxed)) < shards();) update(shard, sweep);
        barrier.arrive_and_wait();
      }
    });
  }
  void pinned_local(Launch&) {
    start(*local_);
    Barrier barrier{workers_};
    pinned_.run([&](int worker) {
      for (std::size_t sweep = 0; sweep < sweeps_; ++sweep) {
        update(static_cast<std::size_t>(worker), sweep);
        barrier.arrive_and_wait();
      }
    });
  }

  void metrics(std::string_view, Metrics& metrics) override {
    double migrations = 0;
    for (const Whereabouts& shard : whereabouts_) migrations += shard.migrations;
    metrics.report("shard_migrations", migrations, "count", Metrics::Better::lower);
    if (const double share = remote_percent(); share >= 0) metrics.report("remote_pages", share, "%", Metrics::Better::lower);
  }

 private:
  std::size_t shards() const { return static_cast<std::size_t>(workers_); }
  void start(const ShardMemory& memory) {
    memory_ = memory.data();
    std::fill(whereabouts_.begin(), whereabouts_.end(), Whereabouts{});
  }
  void update(std::size_t shard, std::size_t sweep) {
    whereabouts_[shard].visit();
    float* const values = memory_ + shard_ * shard;
    if (sweep == 0) std::copy_n(initial_ + shard_ * shard, shard_, values);
    add_step(values, shard_, steps_.get()[sweep]);
    if (sweep + 1 == sweeps_) std::copy_n(values, shard_, result_ + shard_ * shard);
  }
  // Pages of another node than that of the CPU which used them last, from eight pages of each shard.
  double remote_percent() const {
    constexpr std::size_t probes = 8;
    double remote = 0;
    for (std::size_t i = 0; i < shards() * probes; ++i) {
      const int node = node_of(memory_ + shard_ / probes * i);
      if (node < 0) return -1;
      remote += static_cast<unsigned>(node) != whereabouts_[i / probes].node;
    }
    return 100 * remote / static_cast<double>(shards() * probes);
  }

  int workers_;
  std::size_t sweeps_, shard_;
  Input<float> initial_, steps_;
  Output<float> result_;
  ThreadTeam &unpinned_, &pinned_;
  std::vector<Whereabouts> whereabouts_;
  std::unique_ptr<ShardMemory> shared_, local_;
  float* memory_ = nullptr;  // of the variant that runs
};

}  // namespace

extern constinit const Pair numa_unaware{
    .teaches = "work follows data: pin threads, let each first-touch its shards and keep them, and caches and memory stay local",
    .lesson = "pinned_local",
    .make = make<NumaUnaware>,
    .baseline = {.name = "shared_counter",
                 .run = call<&NumaUnaware::shared_counter>,
                 .prepare = call<&NumaUnaware::touch_all_here>},
    .optimized = variants(
        {{.name = "pinned_local", .run = call<&NumaUnaware::pinned_local>, .prepare = call<&NumaUnaware::touch_by_owner>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .needs = {.cpus = 2},
};

}  // namespace aisp::ch03
