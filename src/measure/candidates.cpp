// SPDX-License-Identifier: Apache-2.0
#include "measure/candidates.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/math/statistics.hpp"
#include "base/one_way.hpp"

namespace aisp::measure {
namespace {

constexpr int most_rounds = 24;
// After this long the search ends, once it has the rounds that a comparison needs; until then only a few go on.
constexpr double budget_s = 0.9;
constexpr int telling_rounds = 7;
constexpr std::size_t most_when_late = 4;
// A difference below this share is none: candidates that differ by less are equally good.
constexpr double told_apart = 0.01;
// Before so many rounds chance cannot be ruled out, and the default does not leave.
constexpr int rounds_of_default = 6;

constexpr double infinite = std::numeric_limits<double>::infinity();

// Returns how many times as slow as the best a candidate may look after so many rounds without leaving.
double near_the_best(int rounds) { return 1 + std::max(2 * told_apart, 0.4 / std::pow(rounds, 1.5)); }

class Search {
 public:
  Search(std::size_t count, const CandidateCallbacks& callbacks)
      : callbacks_{callbacks}, start_s_{callbacks.now_s()}, times_ms_(count), left_(count) {
    std::iota(left_.begin(), left_.end(), std::size_t{0});
  }

  Chosen result() {
    int rounds = 0;
    while (left_.size() > (rounds == 0 ? 0 : 1) && rounds < most_rounds && !(late() && rounds >= telling_rounds)) {
      time_round();
      drop_slow_ones(++rounds);
    }
    Chosen chosen{.candidate = {}, .median_ms = {}, .rounds = rounds};
    for (const std::vector<double>& times : times_ms_) chosen.median_ms.push_back(times.empty() ? infinite : base::median(times));
    if (left_.empty()) return chosen;
    chosen.candidate = *std::ranges::find_if(left_, [&, by = best()](std::size_t i) { return !beaten(i, by, 1 + told_apart); });
    return chosen;
  }

 private:
  bool late() const { return callbacks_.now_s() - start_s_ > budget_s; }
  double median_ms(std::size_t i) const { return base::median(times_ms_[i]); }
  // The candidate that looks fastest; there must be one.
  std::size_t best() const {
    return *std::ranges::min_element(left_, {}, [&](std::size_t i) { return median_ms(i); });
  }

  void time_round() {
    std::vector<std::size_t> order = left_;
    std::shuffle(order.begin(), order.end(), random_);
    for (const std::size_t i : order)
      if (const std::optional<double> ms = callbacks_.time_ms(i)) times_ms_[i].push_back(*ms);
      else times_ms_[i].clear(), std::erase(left_, i);
  }

  void drop_slow_ones(int rounds) {
    if (left_.empty()) return;
    const std::size_t by_default = left_.front(), by = best();
    std::erase_if(left_, [&](std::size_t i) {
      return beaten(i, by, near_the_best(rounds)) && !(i == by_default && rounds < rounds_of_default);
    });
    if (!late() || left_.size() <= most_when_late) return;
    std::vector<std::size_t> by_time = left_;
    std::ranges::nth_element(by_time, by_time.begin() + most_when_late, {}, [&](std::size_t i) { return median_ms(i); });
    const double slowest_ms = median_ms(by_time[most_when_late]);
    std::erase_if(left_, [&](std::size_t i) { return median_ms(i) >= slowest_ms && i != by && i != by_default; });
  }

  // Whether another is faster in pairs of the same round, by more than `times`, and not by chance.
  bool beaten(std::size_t i, std::size_t by, double times) const {
    if (i == by) return false;
    std::vector<double> ratios;
    for (std::size_t round = 0; round < times_ms_[i].size(); ++round)
      ratios.push_back(times_ms_[i][round] / times_ms_[by][round]);
    std::ranges::sort(ratios);
    const auto ranks = base::median_ranks(ratios.size());
    return base::median(ratios) > times && ratios[ranks ? ranks->low : 0] > 1;
  }

  const CandidateCallbacks& callbacks_;
  double start_s_;
  std::vector<std::vector<double>> times_ms_;  // of each candidate, one a round
  std::vector<std::size_t> left_;              // in their order
  base::OneWayRandom random_{1};
};

}  // namespace

Chosen choose_fastest(std::size_t count, const CandidateCallbacks& callbacks) { return Search{count, callbacks}.result(); }

}  // namespace aisp::measure
