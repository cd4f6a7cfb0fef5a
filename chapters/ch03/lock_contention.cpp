// SPDX-License-Identifier: Apache-2.0
// A loader hands sample ids to its workers, and a sample takes less time than handing it out: every id is a lock that all threads
// want and a notification that may wake a sleeper, so the workers queue for the queue. A chunk of ids pays for lock and wake-up
// once; a counter that workers advance themselves needs neither. One thread without a queue is the control: what it beats costs
// more than it brings. The data set fits a core's cache, so hashing costs the same everywhere; the sweep makes samples longer, up
// to where the lock no longer matters.
#include <aisp/pair.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <queue>

#include "usage.hpp"

namespace aisp::ch03 {
namespace {

constexpr std::size_t data_set_tokens = std::size_t{1} << 17;  // 512 KiB
// In a run, whatever the length of a sample; fewer where many threads queue, because each of them makes an id take longer.
constexpr std::size_t tokens_hashed = std::size_t{6400} << 10, tokens_hashed_by_many = tokens_hashed / 4;
constexpr int many_cpus = 32;
constexpr std::size_t queue_chunk = 256;
constexpr std::size_t counter_chunk = 64;

// FNV-1a over tokens; each step waits for the one before.
std::uint32_t hash_of(const std::uint32_t* tokens, std::size_t count) {
  std::uint32_t hash = 2166136261u;
  for (std::size_t i = 0; i < count; ++i) hash = (hash ^ tokens[i]) * 16777619u;
  return hash;
}

struct Chunk {
  std::size_t begin, end;
};

template <class Item>
class Queue {
 public:
  void push(Item item) {
    {
      const std::scoped_lock lock{mutex_};
      items_.push(item);
    }
    changed_.notify_one();
  }
  void close() {
    {
      const std::scoped_lock lock{mutex_};
      closed_ = true;
    }
    changed_.notify_all();
  }
  // Waits for an item; nothing when the queue is closed and empty.
  std::optional<Item> pop() {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [this] { return closed_ || !items_.empty(); });
    if (items_.empty()) return std::nullopt;
    const Item item = items_.front();
    items_.pop();
    return item;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::queue<Item> items_;
  bool closed_ = false;
};

class LockContention final : public Workload {
 public:
  explicit LockContention(Setup& setup)
      : sample_tokens_{setup.size("tokens")},
        count_{setup.scaled((setup.cpus() < many_cpus ? tokens_hashed : tokens_hashed_by_many) / sample_tokens_)},
        tokens_{setup.input<std::uint32_t>(data_set_tokens, integers(0, 0xFFFF))},
        ids_{setup.input<std::uint32_t>(count_, integers(0, static_cast<std::int64_t>(data_set_tokens / sample_tokens_) - 1))},
        sum_{setup.output<std::uint32_t>(1)},
        producer_and_workers_{setup.threads(setup.cpus() + 1, false)},
        workers_{setup.threads(setup.cpus())} {}

  Cost cost() const override { return {.host_bytes = static_cast<double>(tokens_.bytes() + ids_.bytes() + sum_.bytes())}; }
  double expected(std::size_t) const override { return reference_; }
  void compute_reference(Launch&) override {
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      std::uint32_t hash = 2166136261u;
      for (std::size_t t = 0; t < sample_tokens_; ++t) {
        hash ^= tokens_.host(ids_.host(i) * sample_tokens_ + t);
        hash *= 16777619u;
      }
      sum += hash;
    }
    reference_ = sum;
  }

  void id_queue(Launch&) {
    through_queue<std::uint32_t>(
        [this](Queue<std::uint32_t>& queue) {
          for (std::size_t i = 0; i < count_; ++i) queue.push(ids_.get()[i]);
        },
        [this](std::uint32_t id) { return hash_of_sample(id); });
  }
  void chunked_queue(Launch&) {
    through_queue<Chunk>(
        [this](Queue<Chunk>& queue) {
          for (std::size_t i = 0; i < count_; i += queue_chunk) queue.push({i, std::min(i + queue_chunk, count_)});
        },
        [this](Chunk chunk) { return sum_of(chunk); });
  }
  void atomic_counter(Launch&) {
    std::atomic<std::size_t> next{0};
    collect(workers_, [&](int) {
      std::uint32_t sum = 0;
      for (std::size_t i; (i = next.fetch_add(counter_chunk, std::memory_order_relaxed)) < count_;)
        sum += sum_of({i, std::min(i + counter_chunk, count_)});
      return sum;
    });
  }

  void one_thread(Launch&) {
    const Usage before = Usage::now();
    sum_[0] = sum_of({0, count_});
    used_ = Usage::now().since(before);
  }

  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report("context_switches", used_.context_switches, "count", Metrics::Better::lower);
  }

 private:
  std::uint32_t sum_of(Chunk chunk) const {
    std::uint32_t sum = 0;
    for (std::size_t i = chunk.begin; i < chunk.end; ++i) sum += hash_of_sample(ids_.get()[i]);
    return sum;
  }
  std::uint32_t hash_of_sample(std::size_t id) const { return hash_of(tokens_ + id * sample_tokens_, sample_tokens_); }
  // The caller's thread produces; one worker per CPU takes items until the queue is closed.
  template <class Item, class Produce, class Consume>
  void through_queue(Produce produce, Consume consume) {
    Queue<Item> queue;
    collect(producer_and_workers_, [&](int worker) {
      std::uint32_t sum = 0;
      if (worker == 0) {
        produce(queue);
        queue.close();
      } else {
        while (const std::optional<Item> item = queue.pop()) sum += consume(*item);
      }
      return sum;
    });
  }
  template <class Work>
  void collect(ThreadTeam& team, Work work) {
    const Usage before = Usage::now();
    std::atomic<std::uint32_t> total{0};
    team.run([&](int worker) { total.fetch_add(work(worker), std::memory_order_relaxed); });
    sum_[0] = total;
    used_ = Usage::now().since(before);
  }

  std::size_t sample_tokens_, count_;
  Input<std::uint32_t> tokens_, ids_;
  Output<std::uint32_t> sum_;
  ThreadTeam &producer_and_workers_, &workers_;
  Usage used_;
  double reference_ = 0;
};

}  // namespace

extern constinit const Pair lock_contention{
    .teaches = "one lock and one notification per item turn workers into a convoy; hand out chunks or use a counter",
    .lesson = "chunked_queue",
    .make = make<LockContention>,
    .baseline = {.name = "id_queue", .run = call<&LockContention::id_queue>},
    .optimized = variants({{.name = "chunked_queue", .run = call<&LockContention::chunked_queue>},
                           {.name = "atomic_counter", .run = call<&LockContention::atomic_counter>}}),
    .controls = variants({{.name = "one_thread", .run = call<&LockContention::one_thread>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .needs = {.cpus = 2},
    .sizes = sizes({{.name = "tokens", .full = 64, .multiple = 64, .most = 1 << 16, .scales = false}}),
    .sweep = cases(
        {{"tokens_64", "tokens=64"}, {"tokens_1k", "tokens=1024"}, {"tokens_8k", "tokens=8192"}, {"tokens_64k", "tokens=65536"}}),
};

}  // namespace aisp::ch03
