// SPDX-License-Identifier: Apache-2.0
#include "measure/statistics/ratio.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "base/math/statistics.hpp"
#include "measure/statistics/clock_step.hpp"
#include "measure/statistics/correlation.hpp"
#include "measure/statistics/statistics.hpp"

namespace aisp::measure {
namespace {

constexpr double chance_beyond = 0.025;  // probability on each side
// Lower limit: kernels shorter than the stopwatch's jitter would come out at or below zero.
constexpr double shortest_ms = 1e-5;
// Effective rounds per degree of freedom of their spread, because their number is estimated from the same rounds.
constexpr double effective_a_degree = 3, fewest_degrees = 3;
// Correction for short series, in which correlation is underestimated, per correlated stretch.
constexpr double short_series = 2;

// Returns a quantile of the normal distribution above its median, by bisection.
double normal_quantile(double beyond) {
  double low = 0, high = 40;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(middle / std::sqrt(2.0)) / 2 > beyond ? low : high) = middle;
  }
  return low;
}

// One of the two series of a ratio.
struct SampleSeries {
  std::span<const double> readings;
  std::vector<double> spread;  // readings spread over the clock's step
  double median = 0;

  SampleSeries(std::span<const double> values, double step)
      : readings{values}, spread{spread_over_step(values, step)}, median{measure::median(spread)} {}

  // Returns the uncertainty of the median, by order statistics.
  double uncertainty() const {
    const auto ranks = base::median_ranks(spread.size());
    if (!ranks) return 0;
    std::vector<double> sorted = spread;
    std::sort(sorted.begin(), sorted.end());
    return (sorted[ranks->high] - sorted[ranks->low]) / 2;
  }
};

// The medians of resampled rounds.
class Resampler {
 public:
  Resampler(std::size_t rounds, std::uint64_t seed) : random_{seed}, pick_{0, rounds - 1}, picked_(rounds), values_(rounds) {}
  void draw() {
    for (std::size_t& round : picked_) round = pick_(random_);
  }
  double median_of(const SampleSeries& series) {
    for (std::size_t i = 0; i < picked_.size(); ++i) values_[i] = series.spread[picked_[i]];
    return median_in_place(values_);
  }

 private:
  std::mt19937_64 random_;
  std::uniform_int_distribution<std::size_t> pick_;
  std::vector<std::size_t> picked_;
  std::vector<double> values_;
};

struct Ratio {
  SampleSeries above, below, probe;
  Correction correction;
  std::size_t rounds;

  double of(double numerator, double denominator, double offset) const {
    return correction.corrected(numerator, offset) / correction.corrected(denominator, offset);
  }
  double offset() const { return correction.probe.empty() ? 0 : std::max(0.0, probe.median - correction.probe_work); }
  // Whether each round has a reading of the probe.
  bool probe_in_rounds() const { return probe.readings.size() == rounds; }

  std::vector<double> resampled(std::uint64_t seed, int resamples) const {
    Resampler resampler{rounds, seed};
    std::vector<double> ratios(static_cast<std::size_t>(resamples));
    for (double& ratio : ratios) {
      resampler.draw();
      const double offset_now = probe_in_rounds() ? std::max(0.0, resampler.median_of(probe) - correction.probe_work) : offset();
      ratio = of(resampler.median_of(above), resampler.median_of(below), offset_now);
    }
    std::sort(ratios.begin(), ratios.end());
    return ratios;
  }

  // Returns two standard deviations of the difference of two uncertainties, each from the values between its ranks.
  double weight_error() const {
    const auto ranks = base::median_ranks(rounds);
    return ranks ? 2 * std::sqrt(2.0 / static_cast<double>(ranks->high - ranks->low)) : 0;
  }

  // Returns each round's influence on the logarithm of the ratio: its side of a median counts as much as that median is
  // uncertain. Effects that the series share in a round cancel.
  std::vector<double> influence() const {
    struct SeriesPart {
      const SampleSeries* series;
      double weight;
    };
    const double numerator = correction.corrected(above.median, offset());
    const double denominator = correction.corrected(below.median, offset());
    double first = above.uncertainty() / numerator, second = below.uncertainty() / denominator;
    // Equalizes weights that differ by chance alone, so that shared effects cancel.
    if (std::abs(first - second) <= weight_error() * (first + second) / 2) first = second = (first + second) / 2;
    std::vector<SeriesPart> parts{{&above, first}, {&below, -second}};
    if (probe_in_rounds()) parts.push_back({&probe, probe.uncertainty() * (1 / denominator - 1 / numerator)});
    std::vector<double> sums(rounds, 0.0);
    for (const SeriesPart& part : parts)
      for (std::size_t round = 0; round < rounds; ++round) {
        const double distance = part.series->readings[round] - part.series->median;
        sums[round] += part.weight * static_cast<double>((distance > 0) - (distance < 0));
      }
    return sums;
  }
};

}  // namespace

// Returns the error of the ratio's logarithm if all rounds together were worth one of ten consecutive batches: no interval need
// be wider, however correlated rounds are.
static double as_if_one_batch(const Ratio& ratio, double offset, std::size_t rounds) {
  constexpr std::size_t batches = 10, fewest_in_batch = 5;
  if (rounds < batches * fewest_in_batch) return INFINITY;
  std::vector<double> logarithms;
  for (std::size_t b = 0; b < batches; ++b) {
    const std::size_t first = rounds * b / batches, count = rounds * (b + 1) / batches - first;
    const auto median_of = [&](const SampleSeries& series) {
      return median(std::vector<double>(series.spread.begin() + static_cast<std::ptrdiff_t>(first),
                                        series.spread.begin() + static_cast<std::ptrdiff_t>(first + count)));
    };
    const double value = ratio.of(median_of(ratio.above), median_of(ratio.below), offset);
    if (!(value > 0)) return INFINITY;
    logarithms.push_back(std::log(value));
  }
  return base::student_t_975(batches - 1) * summarize(logarithms).std;
}

double Correction::offset() const {
  return probe.empty() ? 0 : std::max(0.0, median(spread_over_step(probe, step)) - probe_work);
}

double Correction::corrected(double reading, double offset) const {
  return probe.empty() ? reading : std::max(reading - offset, std::max(accuracy, shortest_ms));
}

Interval ratio_of_medians(std::span<const double> numerator, std::span<const double> denominator, std::uint64_t seed,
                          const RatioOptions& options) {
  const std::size_t rounds = std::min(numerator.size(), denominator.size());
  if (rounds == 0) return {};
  const Correction& correction = options.correction;
  const Ratio ratio{SampleSeries{numerator.first(rounds), correction.step},
                    SampleSeries{denominator.first(rounds), correction.step}, SampleSeries{correction.probe, correction.step},
                    correction, rounds};
  const double offset = ratio.offset();
  Interval interval;
  interval.rounds = rounds;
  interval.value = ratio.of(ratio.above.median, ratio.below.median, offset);
  interval.effective_rounds = effective_count(ratio.influence());
  const double least = measurable_times * correction.accuracy;
  interval.measurable = ratio.above.median - offset >= least && ratio.below.median - offset >= least;

  const double usual = normal_quantile(chance_beyond);
  double widen = normal_quantile(chance_beyond / options.claims) / usual;
  const double worth = static_cast<double>(rounds) / interval.effective_rounds;
  if (worth > 1)
    widen *= std::sqrt(worth * (1 + short_series * worth / static_cast<double>(rounds))) *
             base::student_t_975(std::max(interval.effective_rounds / effective_a_degree, fewest_degrees)) / usual;
  const std::vector<double> ratios = ratio.resampled(seed, options.resamples);
  const double shift[] = {ratio.of(ratio.above.median, ratio.below.median, offset + correction.accuracy),
                          ratio.of(ratio.above.median, ratio.below.median, offset - correction.accuracy)};
  const double most = as_if_one_batch(ratio, offset, rounds);
  const auto end = [&](double percent, double systematic) {
    const double resampled = percentile(ratios, percent);
    // Metrics, unlike times, may be zero.
    if (!(resampled > 0 && interval.value > 0)) return resampled;
    const double alone = std::log(resampled / interval.value), widened = alone * widen;
    // Never narrower than the bootstrap itself.
    return systematic * std::exp(std::abs(widened) <= most ? widened : std::copysign(std::max(most, std::abs(alone)), alone));
  };
  interval.low = end(100 * chance_beyond, std::min(interval.value, *std::min_element(std::begin(shift), std::end(shift))));
  interval.high = end(100 * (1 - chance_beyond), std::max(interval.value, *std::max_element(std::begin(shift), std::end(shift))));
  return interval;
}

evidence::Verdict verdict(const Interval& speedup) {
  if (speedup.rounds < fewest_rounds || !speedup.measurable) return evidence::Verdict::cannot_tell;
  const double equal = 1 + speedup.placement, told_apart = 1 + std::max(smallest_difference, speedup.placement);
  if (speedup.low > equal && speedup.value >= told_apart) return evidence::Verdict::faster;
  if (speedup.high < 1 / equal && speedup.value <= 1 / told_apart) return evidence::Verdict::slower;
  return evidence::Verdict::cannot_tell;
}

}  // namespace aisp::measure
