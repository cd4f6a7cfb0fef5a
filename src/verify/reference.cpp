// SPDX-License-Identifier: Apache-2.0
#include "verify/reference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <functional>
#include <mutex>
#include <numeric>
#include <thread>

namespace aisp::verify {
namespace {

std::vector<std::size_t> sample_indices(std::size_t count, std::size_t samples, std::uint64_t seed) {
  std::vector<std::size_t> indices;
  if (count <= samples) {
    indices.resize(count);
    std::iota(indices.begin(), indices.end(), std::size_t{0});
    return indices;
  }
  indices = {0, count - 1};
  for (std::size_t i = 2; i < samples; ++i) indices.push_back(random_bits(seed, i) % count);
  std::sort(indices.begin(), indices.end());
  return indices;
}

// References can be dear (a dot product of thousands of generated values each): all CPUs take part.
std::vector<double> evaluate(const std::vector<std::size_t>& indices, int threads,
                             const std::function<double(std::size_t)>& expected) {
  std::vector<double> values(indices.size());
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&] {
    try {
      for (std::size_t i = next++; i < indices.size(); i = next++) values[i] = expected(indices[i]);
    } catch (...) {
      const std::scoped_lock lock{failure_mutex};
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> workers;
  for (int t = 1; t < threads; ++t) workers.emplace_back(work);
  work();
  for (std::thread& worker : workers) worker.join();
  if (failure) std::rethrow_exception(failure);
  return values;
}

struct Errors {
  double relative_l2 = 0;
  double largest = 0;
  std::size_t worst = 0;  // position of the largest
  std::size_t wrong = 0;  // not equal
};

Errors errors_of(const std::vector<double>& values, const std::vector<double>& expected) {
  double squares = 0, differences = 0;
  for (const double value : expected) squares += value * value;
  const double rms = expected.empty() ? 0 : std::sqrt(squares / static_cast<double>(expected.size()));
  Errors errors;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double difference = std::abs(values[i] - expected[i]);
    errors.wrong += !(values[i] == expected[i]);
    differences += difference * difference;
    const double scale = std::abs(expected[i]) + rms;
    double error = difference == 0 ? 0 : difference / scale;
    if (std::isnan(error)) error = INFINITY;
    if (error > errors.largest) {
      errors.largest = error;
      errors.worst = i;
    }
  }
  if (differences > 0 || std::isnan(differences)) errors.relative_l2 = std::sqrt(differences / squares);
  if (std::isnan(errors.relative_l2)) errors.relative_l2 = INFINITY;
  return errors;
}

}  // namespace

ReferenceSamples take_samples(const pair::Session& session, const pair::Snapshot& outputs, std::uint64_t seed, std::size_t most) {
  ReferenceSamples samples;
  samples.indices = sample_indices(outputs.elements().count, std::min(most, session.pair().reference_samples), seed);
  samples.values = outputs.values(samples.indices);
  return samples;
}

ReferenceCheck check_reference(pair::Session& session, const Variant& variant, int output, const ReferenceSamples& samples,
                               int threads) {
  const Buffer& buffer = *session.results()[static_cast<std::size_t>(output)];
  const Workload& workload = session.workload();
  const auto& [indices, values] = samples;
  if (threads <= 0) threads = session.cpus();
  const std::vector<double> expected = evaluate(indices, threads, [&](std::size_t index) {
    return variant.changes_precision ? workload.expected_quantized(variant.name, output, index)
                                     : workload.expected_output(output, index);
  });

  ReferenceCheck result;
  const Tolerance limits = resolve(variant.tolerance.value_or(session.pair().tolerance), buffer.type);
  const Errors errors = errors_of(values, expected);
  result.accuracy.samples = indices.size();
  result.accuracy.relative_l2 = errors.relative_l2;
  result.accuracy.max_error = errors.largest;
  result.accuracy.limit_relative_l2 = limits.relative_l2;
  result.accuracy.limit_max_error = limits.element;
  if (variant.changes_precision) {
    const std::vector<double> unquantized =
        evaluate(indices, threads, [&](std::size_t index) { return workload.expected_output(output, index); });
    result.accuracy.unquantized_l2 = errors_of(values, unquantized).relative_l2;
  }
  if (indices.empty()) return result;
  const std::string worst =
      fmt::format("element {} is {:.9g}, expected {:.9g}", indices[errors.worst], values[errors.worst], expected[errors.worst]);
  if (limits.kind == Tolerance::Kind::exact) {
    if (errors.wrong != 0)
      result.problems.push_back(
          fmt::format("{} of {} checked elements of {} are wrong; {}", errors.wrong, indices.size(), buffer.name, worst));
  } else if (!(errors.relative_l2 <= limits.relative_l2) || !(errors.largest <= limits.element)) {
    result.problems.push_back(
        fmt::format("{}: relative L2 error {:.2g} (limit {:.2g}), largest element error {:.2g} (limit {:.2g}); {}", buffer.name,
                    errors.relative_l2, limits.relative_l2, errors.largest, limits.element, worst));
  }
  return result;
}

}  // namespace aisp::verify
