// SPDX-License-Identifier: Apache-2.0
// Tables of patterns, made once on the host: values that a GPU draws from them have the same bits by construction.
#include <aisp/ragged.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <vector>

namespace aisp {
namespace {

struct ValueInterval {
  std::int64_t first, width;
  double weight;
};

Pattern table_of(const std::vector<ValueInterval>& intervals) {
  if (intervals.empty() || intervals.size() > Pattern::most_bins) throw std::logic_error{"a table has 1 to 64 bins"};
  double sum = 0;
  for (const ValueInterval& interval : intervals) {
    if (!(std::isfinite(interval.weight) && interval.weight >= 0)) throw std::logic_error{"a weight is no positive number"};
    sum += interval.weight;
  }
  if (!(sum > 0)) throw std::logic_error{"all weights are zero"};
  Pattern pattern;
  pattern.kind = Pattern::Kind::table;
  pattern.bins = intervals.size();
  double before = 0;
  for (std::size_t b = 0; b < intervals.size(); ++b) {
    before += intervals[b].weight;
    const double below = std::min(std::floor(before / sum * 0x1p32), 4294967295.0);
    pattern.bin[b] = {intervals[b].first, static_cast<std::uint32_t>(intervals[b].width), static_cast<std::uint32_t>(below)};
  }
  return pattern;
}

// Makes bins over least ... most: the first hold one number each, the others grow by a factor. `mass`: of the numbers from a to b
// - 1.
Pattern growing_bins(std::int64_t least, std::int64_t most, const std::function<double(double a, double b)>& mass) {
  if (least > most || most - least >= (std::int64_t{1} << 32)) throw std::logic_error{"a table is of 1 to 2^32 numbers in order"};
  constexpr std::int64_t single = 24;
  const std::int64_t count = most - least + 1;
  const auto others = static_cast<double>(Pattern::most_bins - single);
  const double factor = count <= single ? 1 : std::pow(static_cast<double>(count) / single, 1 / others);
  std::vector<ValueInterval> intervals;
  std::int64_t from = 0;
  double end = single;
  while (from < count) {
    std::int64_t to = from + 1;
    if (from >= single) {
      end *= factor;
      to = std::clamp(static_cast<std::int64_t>(std::llround(end)), from + 1, count);
      if (intervals.size() + 1 == Pattern::most_bins) to = count;
    }
    intervals.push_back({least + from, to - from, mass(static_cast<double>(least + from), static_cast<double>(least + to))});
    from = to;
  }
  return table_of(intervals);
}

// Returns the sum of k^-exponent for a <= k < b: term by term if there are few, else the integral from a - 1/2 to b - 1/2.
double sum_of_powers(double a, double b, double exponent) {
  constexpr double few = 64;
  if (b - a <= few) {
    double sum = 0;
    for (double k = a; k < b; ++k) sum += std::pow(k, -exponent);
    return sum;
  }
  const double low = a - 0.5, high = b - 0.5;
  return exponent == 1 ? std::log(high / low) : (std::pow(high, 1 - exponent) - std::pow(low, 1 - exponent)) / (1 - exponent);
}

}  // namespace

namespace detail {

void pattern_is_full() { throw std::logic_error{"a pattern takes six changes"}; }

std::vector<std::int64_t> ragged_lengths(const Pattern& lengths, std::size_t segments, std::uint64_t seed) {
  std::vector<std::int64_t> result(segments);
  for (std::size_t i = 0; i < segments; ++i)
    result[i] = std::max<std::int64_t>(0, pattern_value<std::int64_t>(lengths, random_bits(seed, 0), i));
  return result;
}

std::vector<std::int64_t> shuffled(std::vector<std::int64_t> lengths, std::uint64_t seed) {
  const std::uint64_t order = random_bits(seed, 1);
  for (std::size_t i = 0; i < lengths.size(); ++i)
    std::swap(lengths[i], lengths[i + random_bits(order, i) % (lengths.size() - i)]);
  return lengths;
}

void cut_to(std::vector<std::int64_t>& lengths, std::int64_t most_total) {
  std::int64_t left = std::max<std::int64_t>(0, most_total);
  for (std::int64_t& length : lengths) {
    length = std::min(length, left);
    left -= length;
  }
}

std::vector<std::int64_t> sums_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> sums{0};
  for (const std::int64_t length : lengths) sums.push_back(sums.back() + length);
  return sums;
}

// Scales the sums; truncating the exact sums to whole numbers carries each row's remainder into the next.
void stretch_to(std::vector<std::int64_t>& sums, std::int64_t total) {
  const auto drawn = static_cast<double>(sums.back());
  const auto rows = static_cast<double>(sums.size() - 1);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const double part = drawn > 0 ? static_cast<double>(sums[i]) / drawn : static_cast<double>(i) / std::max(rows, 1.0);
    sums[i] = std::min(total, static_cast<std::int64_t>(std::floor(part * static_cast<double>(total))));
  }
  sums.back() = sums.size() > 1 ? total : 0;
}

}  // namespace detail

Pattern categorical(std::initializer_list<Weighted> values) {
  std::vector<ValueInterval> intervals;
  for (const Weighted& each : values) intervals.push_back({each.value, 1, each.weight});
  return table_of(intervals);
}

Pattern zipf(std::int64_t count, double exponent) {
  return growing_bins(0, count - 1, [&](double a, double b) { return sum_of_powers(a + 1, b + 1, exponent); });
}

Pattern power_law(std::int64_t least, std::int64_t most, double exponent) {
  if (least < 1) throw std::logic_error{"a power law begins at 1 or later"};
  return growing_bins(least, most, [&](double a, double b) { return sum_of_powers(a, b, exponent); });
}

Pattern log_normal(double median, double sigma, std::int64_t least, std::int64_t most) {
  if (!(median > 0 && sigma > 0) || least < 0) throw std::logic_error{"a log-normal length has a positive median and sigma"};
  const auto below = [&](double x) { return x <= 0 ? 0 : 0.5 * std::erfc(std::log(median / x) / (sigma * std::sqrt(2.0))); };
  return growing_bins(least, most, [&](double a, double b) {
    const double from = a <= static_cast<double>(least) ? 0 : below(a - 0.5);
    const double to = b > static_cast<double>(most) ? 1 : below(b - 0.5);
    return to - from;
  });
}

Pattern text() {
  return categorical({{' ', 180}, {'e', 102}, {'t', 75},  {'a', 65}, {'o', 62}, {'n', 57}, {'i', 57}, {'s', 53},
                      {'r', 50},  {'h', 50},  {'l', 33},  {'d', 33}, {'u', 23}, {'c', 22}, {'m', 20}, {'f', 20},
                      {'w', 17},  {'g', 16},  {'\n', 15}, {'p', 15}, {'y', 14}, {'b', 13}, {',', 12}, {'.', 10},
                      {'v', 8},   {'k', 6},   {'x', 1},   {'j', 1},  {'q', 1},  {'z', 1}});
}

}  // namespace aisp
