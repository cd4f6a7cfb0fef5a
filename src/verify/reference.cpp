// SPDX-License-Identifier: Apache-2.0
#include "verify/reference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "base/system/on_threads.hpp"

namespace aisp::verify {
namespace {

using pair::least_of_a_group;
// The share of elements off by steps is counted on samples: an excess of fewer standard deviations is no proof.
constexpr double deviations = 4;
// Narrow types hide an error of one sign below their roundings, but these are as often up as down. Such an error may be this
// share of what a norm may be.
constexpr double one_sided_share = 0.25;
// Terms that are as often positive as negative reach a sum of so many times the root of their squares' sum with a chance of less
// than 2 exp(-8^2 / 2), or 3e-14 (Efron: Student's t-test under symmetry conditions, Journal of the American Statistical
// Association 64, 1969).
constexpr double certain_deviations = 8;
// Normal numbers in 15 even steps over four deviations either way are off by 15 % of their norm (8 / 15 / sqrt(12)). A result
// that loses three times that does not count as quantized.
constexpr double most_quantized_l2 = 0.5;

// Returns the groups of the first and the last element and others, all of them if they are not too many.
std::vector<std::size_t> sampled_groups(const Axis& groups, std::size_t count, std::size_t samples, std::uint64_t seed) {
  const std::size_t most = std::max<std::size_t>(2, samples / least_of_a_group);
  std::vector<std::size_t> chosen;
  if (groups.count <= most) {
    chosen.resize(groups.count);
    std::iota(chosen.begin(), chosen.end(), std::size_t{0});
    return chosen;
  }
  chosen = {0, groups.place(count - 1)};
  for (std::size_t i = 2; i < most; ++i) chosen.push_back(random_bits(seed, i) % groups.count);
  std::ranges::sort(chosen);
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  return chosen;
}

std::vector<std::size_t> indices_by_group(const Axis& groups, std::size_t count, std::size_t samples, std::uint64_t seed) {
  const std::vector<std::size_t> chosen = sampled_groups(groups, count, samples, seed);
  const std::size_t of_each = std::max(least_of_a_group, samples / chosen.size());
  std::vector<std::size_t> indices{0, count - 1};
  for (const std::size_t group : chosen) {
    const std::size_t size = pair::group_size(groups, count, group);
    for (std::size_t k = 0; k < std::min(size, of_each); ++k)
      indices.push_back(
          pair::group_element(groups, group, size <= of_each ? k : random_bits(random_bits(seed, group), k) % size));
  }
  std::ranges::sort(indices);
  return indices;
}

std::vector<std::size_t> sample_indices(std::size_t count, std::size_t samples, std::uint64_t seed, const Axis& groups) {
  std::vector<std::size_t> indices;
  if (count <= samples) {
    indices.resize(count);
    std::iota(indices.begin(), indices.end(), std::size_t{0});
    return indices;
  }
  if (groups.count > 1) return indices_by_group(groups, count, samples, seed);
  indices = {0, count - 1};
  for (std::size_t i = 2; i < samples; ++i) indices.push_back(random_bits(seed, i) % count);
  std::sort(indices.begin(), indices.end());
  return indices;
}

std::vector<double> evaluate(const std::vector<std::size_t>& indices, int threads,
                             const std::function<double(std::size_t)>& expected) {
  std::vector<double> values(indices.size());
  std::atomic<std::size_t> next{0};
  base::on_threads(static_cast<std::size_t>(std::max(1, threads)), [&](std::size_t) {
    for (std::size_t i = next++; i < indices.size(); i = next++) values[i] = expected(indices[i]);
  });
  return values;
}

struct Errors {
  pair::Norms norms;      // norms of groups, estimated from the samples
  std::size_t worst = 0;  // position of the largest error of an element
  double of_group = 0;    // number of samples of the farthest group
};

Errors errors_of(const ReferenceSamples& samples, const std::vector<double>& expected, const Axis& groups, ElementType type) {
  const auto group_of = [&](std::size_t i) { return groups.place(samples.indices[i]); };
  std::map<std::size_t, std::size_t> numbers;  // numbers of the sampled groups
  std::vector<double> squares, counts;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto [found, is_first] = numbers.try_emplace(group_of(i), numbers.size());
    if (is_first) {
      squares.push_back(0);
      counts.push_back(0);
    }
    squares[found->second] += expected[i] * expected[i];
    counts[found->second] += 1;
  }
  std::vector<pair::Norms> of_groups(numbers.size());
  Errors errors;
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::size_t group = numbers[group_of(i)];
    pair::Norms& norms = of_groups[group];
    const double difference = std::abs(samples.values[i] - expected[i]);
    norms.mismatches += !(samples.values[i] == expected[i]);
    norms.difference_squared += std::isnan(difference) ? INFINITY : difference * difference;
    norms.reference_squared += expected[i] * expected[i];
    double error = difference == 0 ? 0 : difference / (std::abs(expected[i]) + std::sqrt(squares[group] / counts[group]));
    if (std::isnan(error)) error = INFINITY;
    norms.largest_element_error = std::max(norms.largest_element_error, error);
    const double steps = pair::steps_between(samples.values[i], expected[i], type);
    norms.most_steps = std::max(norms.most_steps, steps);
    norms.moved += steps != 0;
    if (error > largest) {
      largest = error;
      errors.worst = i;
    }
  }
  errors.norms = pair::whole_of(of_groups);
  errors.norms.groups = groups.count;
  for (const auto& [group, number] : numbers)
    if (number == errors.norms.group) {
      errors.norms.group = group;
      errors.of_group = counts[number];
      break;
    }
  return errors;
}

// Returns the allowance for few samples: their norm differs from the group's by 1 / sqrt(2 count) of it (for normally distributed
// errors; roundings vary less).
double of_few_samples(double count) { return 1 + deviations / std::sqrt(2 * count); }

// Returns an upper bound of all `count` elements' relative L2 distance from the expected values. If a few elements have most of
// the error, or of the norm, samples meet more or fewer of the few. So the squared distance, a ratio of two means, may exceed
// that of the samples by the empirical Bernstein inequality's term, with the largest sample for the range (Maurer and Pontil,
// Empirical Bernstein Bounds and Sample Variance Penalization, 2009); and the distance by half if errors are all alike.
double most_l2_of_all(const ReferenceSamples& samples, const std::vector<double>& expected, std::size_t count) {
  constexpr double alike = 1.5, log_of_risk = 14.5;  // one in a million
  const auto n = static_cast<double>(expected.size());
  const auto squared_error = [&](std::size_t i) { return (samples.values[i] - expected[i]) * (samples.values[i] - expected[i]); };
  double errors = 0, norm = 0, largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    errors += squared_error(i);
    norm += expected[i] * expected[i];
    largest = std::max(largest, squared_error(i));
  }
  if (errors == 0) return 0;
  const double ratio = errors / norm;
  if (expected.size() >= count) return std::sqrt(ratio);
  double variance = 0;  // variance of the ratio's terms, times n
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double beyond = squared_error(i) - ratio * expected[i] * expected[i];
    variance += beyond * beyond;
  }
  const double more = std::sqrt(2 * variance * log_of_risk) + 7 * largest * log_of_risk / 3 * n / (n - 1);
  return std::sqrt(std::max(ratio + more / norm, alike * alike * ratio));
}

// Describes an error of one sign, the projection of all errors on the reference; empty if there is none beyond the limits. Values
// that are stored as the same digits are rounded in the same direction where they lie close together, so they make one term.
std::string one_sided(const ReferenceSamples& samples, const std::vector<double>& expected, const Tolerance& limits,
                      const Buffer& buffer) {
  const double rounding = rounding_error(buffer.type);
  if (limits.kind != Tolerance::Kind::limits || rounding <= rounding_error(ElementType::f32)) return {};
  double along = 0, norm = 0, squares = 0;
  std::map<double, double> terms;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    int exponent = 0;
    const double error = (samples.values[i] - expected[i]) * expected[i];
    along += error;
    norm += expected[i] * expected[i];
    terms[std::abs(std::frexp(samples.values[i], &exponent))] += error;
  }
  for (const auto& [digits, term] : terms) squares += term * term;
  const double most =
      std::max(one_sided_share * std::max(rounding, limits.relative_l2) * norm, certain_deviations * std::sqrt(squares));
  if (std::abs(along) <= most) return {};
  return fmt::format("{} is off by {:.2g} of its size in one direction, where roundings of its type cancel (limit {:.2g})",
                     buffer.name, along / norm, most / norm);
}

// Describes errors beyond the limits; empty if there are none. Those of norms hold for all samples together, unless these are
// few, and for a group except for what its samples may be off.
std::string beyond(const Tolerance& limits, const Errors& errors, const ReferenceSamples& samples, const Buffer& buffer) {
  const pair::Norms& norms = errors.norms;
  const auto count = static_cast<double>(samples.indices.size());
  const bool of_some = samples.indices.size() < buffer.count;
  switch (limits.kind) {
    case Tolerance::Kind::exact:
      return norms.mismatches == 0
                 ? std::string{}
                 : fmt::format("{} of {:.0f} checked elements of {} are wrong", norms.mismatches, count, buffer.name);
    case Tolerance::Kind::codes: {
      const double slack = of_some ? deviations * std::sqrt(limits.share * count) : 0;
      if (norms.most_steps <= limits.most_steps && static_cast<double>(norms.moved) <= limits.share * count + slack) return {};
      return fmt::format(
          "{} of {:.0f} checked elements of {} are off, by up to {:g} steps of their type ({:g} in {:.2g} % may be)", norms.moved,
          count, buffer.name, norms.most_steps, limits.most_steps, 100 * limits.share);
    }
    default: {
      const double of_all = limits.relative_l2 * (samples.few ? of_few_samples(count) : 1);
      const double of_group =
          std::max(of_all, limits.relative_l2 * (of_some && norms.groups > 1 ? of_few_samples(errors.of_group) : 1));
      if (!(norms.relative_l2() <= of_all))
        return fmt::format("{}: relative L2 error {:.2g} (limit {:.2g})", buffer.name, norms.relative_l2(), of_all);
      if (norms.group_l2 <= of_group && norms.largest_element_error <= limits.element) return {};
      return fmt::format("{}{}: relative L2 error {:.2g} (limit {:.2g}), largest element error {:.2g} (limit {:.2g})",
                         buffer.name, in_group(norms), norms.group_l2, of_group, norms.largest_element_error, limits.element);
    }
  }
}

}  // namespace

std::string in_group(const pair::Norms& norms) {
  return norms.groups > 1 ? fmt::format(", group {} of {}", norms.group, norms.groups) : std::string{};
}

ReferenceSamples take_samples(const pair::Session& session, const pair::Snapshot& outputs, std::uint64_t seed, std::size_t most) {
  ReferenceSamples samples;
  samples.indices = sample_indices(outputs.elements().count, std::min(most, session.pair().reference_samples), seed,
                                   outputs.buffer().unordered ? Axis{} : outputs.buffer().groups);
  samples.values = outputs.values(samples.indices);
  samples.few = most < std::min(outputs.elements().count, session.pair().reference_samples);
  return samples;
}

ReferenceValues::ReferenceValues(pair::Session& session, int threads)
    : workload_{session.workload()}, threads_{threads > 0 ? threads : session.cpus()}, kept_(session.results().size()) {}

const std::vector<double>& ReferenceValues::of(int output, const std::vector<std::size_t>& indices) {
  Kept& kept = kept_[static_cast<std::size_t>(output)];
  if (kept.indices != indices)
    kept = {indices, evaluate(indices, threads_, [&](std::size_t index) { return workload_.expected_output(output, index); })};
  return kept.values;
}

std::vector<double> ReferenceValues::quantized(const Variant& variant, int output,
                                               const std::vector<std::size_t>& indices) const {
  return evaluate(indices, threads_,
                  [&](std::size_t index) { return workload_.expected_quantized(variant.name, output, index); });
}

ReferenceCheck check_reference(pair::Session& session, const Variant& variant, int output, const ReferenceSamples& samples,
                               ReferenceValues& reference) {
  const Buffer& buffer = *session.results()[static_cast<std::size_t>(output)];
  const std::vector<std::size_t>& indices = samples.indices;
  const std::vector<double>& values = samples.values;
  const std::vector<double> expected =
      variant.changes_precision ? reference.quantized(variant, output, indices) : reference.of(output, indices);

  ReferenceCheck result;
  const Tolerance limits = session.limits(variant, static_cast<std::size_t>(output));
  const Axis groups = buffer.unordered ? Axis{} : buffer.groups;
  const Errors errors = errors_of(samples, expected, groups, buffer.type);
  const pair::Norms& norms = errors.norms;
  result.accuracy.samples = indices.size();
  result.accuracy.relative_l2 = norms.group_l2;
  result.accuracy.max_error = norms.largest_element_error;
  result.accuracy.limit_relative_l2 = limits.relative_l2;
  result.accuracy.limit_max_error = limits.element;
  if (variant.changes_precision) {
    const std::vector<double>& unquantized = reference.of(output, indices);
    result.accuracy.unquantized_l2 = errors_of(samples, unquantized, Axis{}, buffer.type).norms.relative_l2();
    result.most_from_truth = most_l2_of_all(samples, unquantized, buffer.count);
  } else {
    result.most_from_truth = most_l2_of_all(samples, expected, buffer.count);
  }
  if (indices.empty()) return result;
  const std::string worst =
      fmt::format("element {} is {}, expected {}", indices[errors.worst], pair::element_text(values[errors.worst], buffer.type),
                  pair::element_text(expected[errors.worst], buffer.type));
  if (const std::string wrong = beyond(limits, errors, samples, buffer); !wrong.empty())
    result.problem = {fmt::format("{}; {}", wrong, worst), may_be_chance(norms, buffer.count, limits)};
  // Kernels of a GPU may have errors of one sign that are honest: its approximate functions are not yet measured.
  if (!result.problem.text.empty() || session.on_gpu()) return result;
  if (result.accuracy.unquantized_l2 > most_quantized_l2 && indices.size() >= least_of_a_group)
    result.problem.text = fmt::format("{} is off by {:.2g} (relative L2) from the reference that is not quantized (limit {:g})",
                                      buffer.name, result.accuracy.unquantized_l2, most_quantized_l2);
  else result.problem.text = one_sided(samples, expected, limits, buffer);
  return result;
}

}  // namespace aisp::verify
