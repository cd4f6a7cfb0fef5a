// SPDX-License-Identifier: Apache-2.0
// Honest pairs whose baseline's time depends on what it finds, in every process and beside every neighbour alike.
#include "doubling.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

namespace aisp::ch96 {
namespace {

using namespace selftest;

class DependsOnWhatItFinds final : public Doubling {
 public:
  explicit DependsOnWhatItFinds(Setup& setup) : Doubling{setup, std::size_t{256} << 10}, aside_(std::size_t{16} << 20) {}
  void allocates(Launch&) {
    const auto own = std::make_unique_for_overwrite<float[]>(count_);
    for (std::size_t i = 0; i < count_; ++i) own[i] = 2 * in_.get()[i];
    std::copy(own.get(), own.get() + count_, out_.get());
  }
  void naps(Launch&) {
    fill_doubled();
    std::this_thread::sleep_for(std::chrono::microseconds{100});
  }
  // Up to three times as long on some inputs as on others.
  void by_its_data(Launch&) {
    const int passes = 1 + static_cast<int>(std::abs(in_[0]) * 3);
    for (int pass = 0; pass < std::min(passes, 3); ++pass)
      for (std::size_t i = 0; i < count_; ++i) {
        volatile float value = in_.get()[i];
        out_[i] = value + value;
      }
  }
  // The lookups take the place of the inputs in the caches.
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report("looked_up", std::accumulate(aside_.begin(), aside_.end(), 0.0), "", Metrics::Better::higher);
  }

 private:
  std::vector<char> aside_;
};

}  // namespace

extern constinit const selftest::Case honest_heap = pair_of<&Doubling::doubled, DependsOnWhatItFinds>(
    {.does = "has a baseline that allocates in every run", .baseline = call<&DependsOnWhatItFinds::allocates>});
extern constinit const selftest::Case honest_nap = pair_of<&Doubling::doubled, DependsOnWhatItFinds>(
    {.does = "has a baseline that sleeps in every run", .baseline = call<&DependsOnWhatItFinds::naps>});
extern constinit const selftest::Case honest_data = pair_of<&Doubling::doubled, DependsOnWhatItFinds>(
    {.does = "has a baseline that takes longer on some inputs", .baseline = call<&DependsOnWhatItFinds::by_its_data>});

}  // namespace aisp::ch96
