// SPDX-License-Identifier: Apache-2.0
// Host pairs of several processes: each has a part of a vector, and all compute the sum of the parts, over memory that they
// share. The pairs of ch94 misbehave in one rank, each in one way of its own.
#pragma once
#include <sys/mman.h>
#include <unistd.h>
#include <aisp/host.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace aisp::fixtures {

class SumOfRanks : public Workload {
 public:
  explicit SumOfRanks(Setup& setup)
      : rank_{static_cast<std::size_t>(setup.rank())},
        ranks_{static_cast<std::size_t>(setup.ranks())},
        in_{setup.input<float>(count, uniform(-4, 4).on_grid(0.25f).from(rank_ * count))},
        out_{setup.output<float>(count)} {
    share_memory(setup);
  }
  ~SumOfRanks() override {
    ::munmap(windows_, ranks_ * sizeof(Window));
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  Cost cost() const override {
    return {.flops = static_cast<double>(count * ranks_), .host_bytes = static_cast<double>(in_.bytes() + out_.bytes())};
  }
  // Element j of the whole vector is in_.host(j - rank_ * count), in whichever part it lies.
  double expected(std::size_t index) const override {
    double sum = 0;
    for (std::size_t other = 0; other < ranks_; ++other) sum += in_.host(other * count + index - rank_ * count);
    return sum;
  }

  void eight_times(Launch&) { sum(8); }
  void once(Launch&) { sum(1); }

 protected:
  static constexpr std::size_t count = 16 * 1024;
  struct Window {
    std::atomic<int> filled, read;
    float values[count];
  };

  bool is_bad() const { return rank_ == 1; }
  virtual void misbehave(int /*run*/) {}
  virtual float change(int /*run*/, int /*passes*/) { return 0; }

 private:
  struct Shared {
    int process, descriptor;
  };

  void share_memory(Setup& setup) {
    const std::size_t bytes = ranks_ * sizeof(Window);
    if (rank_ == 0) {
      descriptor_ = ::memfd_create("aisp-sum", MFD_CLOEXEC);
      if (descriptor_ < 0 || ::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) fail("no memory to share");
    }
    std::vector<Shared> all(ranks_);
    setup.exchange(Shared{::getpid(), descriptor_}, all.data());
    if (rank_ != 0) {
      const std::string path = "/proc/" + std::to_string(all[0].process) + "/fd/" + std::to_string(all[0].descriptor);
      if ((descriptor_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC)) < 0) fail("cannot open the memory of rank 0");
    }
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (memory == MAP_FAILED) fail("cannot map the memory of rank 0");
    windows_ = static_cast<Window*>(memory);
    // Rank 0 keeps its descriptor until all have opened it.
    std::vector<int> opened(ranks_);
    setup.exchange(1, opened.data());
  }

  static void wait_for(const std::atomic<int>& counter, int value) {
    while (counter.load() < value) std::this_thread::yield();
  }

  void sum(int passes) {
    const int run = ++run_;
    misbehave(run);
    const float more = change(run, passes);
    std::copy_n(in_.get(), count, windows_[rank_].values);
    windows_[rank_].filled = run;
    for (std::size_t other = 0; other < ranks_; ++other) wait_for(windows_[other].filled, run);
    for (int pass = 0; pass < passes; ++pass)
      for (std::size_t i = 0; i < count; ++i) {
        volatile float value = 0;
        for (std::size_t other = 0; other < ranks_; ++other) value = value + windows_[other].values[i];
        out_[i] = value + more;
      }
    windows_[rank_].read = run;
    for (std::size_t other = 0; other < ranks_; ++other) wait_for(windows_[other].read, run);
  }

  std::size_t rank_, ranks_;
  Input<float> in_;
  Output<float> out_;
  int descriptor_ = -1;
  Window* windows_ = nullptr;
  int run_ = 0;
};

template <class Workload>
constexpr Pair sum_of_ranks(Ranks ranks) {
  return {
      .teaches = "the parts of all ranks are added once",
      .make = make<Workload>,
      .baseline = {"eight_times", call<&Workload::eight_times>},
      .optimized = variants({{"once", call<&Workload::once>}}),
      .device = Device::host,
      .bound = Bound::host,
      .tolerance = exact,
      .needs = {.ranks = ranks},
  };
}

}  // namespace aisp::fixtures
