// SPDX-License-Identifier: Apache-2.0
// They leave something behind that slows their baseline, whose code is innocent.
#include "calls.hpp"
#include "doubling.hpp"

#include <malloc.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

namespace aisp::ch94 {
namespace {

using namespace selftest;

class SetsTheHeap final : public Doubling {
 public:
  explicit SetsTheHeap(Setup& setup) : Doubling{setup, std::size_t{1} << 20} {}
  void allocates(Launch&) {
    const auto own = std::make_unique_for_overwrite<float[]>(count_);
    for (std::size_t i = 0; i < count_; ++i) own[i] = 2 * in_.get()[i];
    std::copy(own.get(), own.get() + count_, out_.get());
  }
  // Memory of every allocation is new from then on, and its pages are faults.
  void set(Launch&) {
    ::mallopt(M_MMAP_THRESHOLD, 64 * 1024);
    ::mallopt(M_TRIM_THRESHOLD, 0);
  }
};

class SetsTheTimer final : public Doubling {
 public:
  using Doubling::Doubling;
  void naps(Launch&) {
    fill_doubled();
    std::this_thread::sleep_for(std::chrono::microseconds{100});
  }
  void set(Launch&) { ::prctl(PR_SET_TIMERSLACK, 10'000'000UL, 0, 0, 0); }
};

}  // namespace

extern constinit const selftest::Case heap_for_others =
    pair_of<&Doubling::doubled, SetsTheHeap>({.does = "sets the heap so that its baseline's allocations are slow",
                                              .must = timed_otherwise,
                                              .baseline = call<&SetsTheHeap::allocates>,
                                              .prepare = call<&SetsTheHeap::set>});
extern constinit const selftest::Case timer_for_others =
    pair_of<&Doubling::doubled, SetsTheTimer>({.does = "sets the timer so that its baseline sleeps for too long",
                                               .must = timed_otherwise,
                                               .baseline = call<&SetsTheTimer::naps>,
                                               .prepare = call<&SetsTheTimer::set>});

}  // namespace aisp::ch94
