// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "measure/execution.hpp"
#include "verify/leaks.hpp"
#include "verify/reference.hpp"
#include "verify/verifier.hpp"

namespace aisp::verify {

// First words of numbers that follow from the seed of a verification (base::OneWay).
enum VerificationStream : std::uint64_t { of_inputs = 1, of_order, of_executor, of_places, of_drawings, of_tiles };

// Seed of the inputs that all variants find.
std::uint64_t inputs_seed(const Options& options);

// The outputs that a variant declares, in order, and how many elements of each are defined.
struct Written {
  std::vector<int> outputs;
  std::vector<std::size_t> lengths;
};

// One variant's checks. In this order: run(), take_samples(), compare_with_baseline(), release(), compare_with_reference(),
// compare_with_samples(), validate().
class VariantCheck {
 public:
  VariantCheck(measure::Executor& executor, pair::Session& session, const Variant& variant, const Options& options,
               Outcome& outcome)
      : executor_{executor}, session_{session}, variant_{variant}, options_{options}, outcome_{outcome} {}

  // Runs twice and checks all that needs no comparison value. False when there is nothing left to compare.
  bool run();

  // The workload's own checks may use the reference, which is computed behind all runs: they see one more.
  void validate();

  // Before the copies go.
  void take_samples();

  void compare_with_reference(ReferenceValues& reference);

  // Says of elements that are not finite what was expected there.
  void compare_not_finite(ReferenceValues& reference);

  // A variant that changes precision is compared with the reference on samples only. Both it and the baseline are somewhere
  // around the unquantized reference, and all elements of the two may be as far apart as the samples of both are from it, but no
  // farther.
  void compare_with_samples(const VariantCheck& baseline);

  // Both lie within the tolerance of the truth.
  void compare_with_baseline(const VariantCheck& baseline);

  // Copies of large outputs are not kept longer than needed.
  void release();

  // Digests suffice, so that no copy is kept for it.
  void compare_bits(const VariantCheck& other);

  void compare_with_earlier(const Outcome& earlier);

 private:
  bool run_twice();

  // Copies are taken right behind the execution; what the buffers hold when all has come to rest must be the same.
  void run_once(std::vector<pair::Snapshot>& copies);

  // The stream has run dry; whatever else was still at work was not part of what would be timed.
  void check_finished(const std::vector<pair::Snapshot>& copies);

  // The length of a result is asked for when copies are safe, and must not touch what it looks at.
  void look_behind_hooks(std::vector<pair::Snapshot>& copies, Written& written);

  std::string changed_since(const std::vector<pair::Snapshot>& copies) const;

  // Clears the pools, so that this variant does not find earlier variants' memory.
  void scrub_pools();

  void check_elements(std::vector<pair::Snapshot>& second, int first_poison, int second_poison);

  void report_not_finite(std::size_t i, std::size_t count);

  // Behind the defined elements of a result of variable length the poison must still be there.
  void check_tails();

  void check_leaks(std::vector<pair::Snapshot>& copies);

  // Describes an error in a tile of an output that its norm hides; empty if there is none.
  std::string concentrated_error(std::size_t i, const VariantCheck& baseline, const pair::Norms& norms) const;
  bool may_differ(std::size_t i) const;

  Tolerance limits_of(std::size_t i) const;
  pair::Norms compare(std::size_t i, const pair::Snapshot& found, const pair::Snapshot& reference) const;

  const Buffer& result(int output) const;
  const Buffer& buffer_of(std::size_t i) const;
  std::string name(std::size_t i) const;

  bool fail(std::string check, std::string message, std::string advice = {});
  void fail(std::string check, Difference difference, std::string advice = {});

  // Other streams answer within this when they have nothing to do.
  static constexpr double most_early_ms = 0.25;

  measure::Executor& executor_;
  pair::Session& session_;
  const Variant& variant_;
  const Options& options_;
  Outcome& outcome_;
  Written written_;
  std::vector<pair::Snapshot> first_;
  std::vector<ReferenceSamples> samples_;
  struct NotFinite {
    int output = 0;
    std::size_t index = 0;    // of the first such element
    std::size_t problem = 0;  // of the outcome
  };
  std::vector<NotFinite> not_finite_;
  std::vector<std::uint64_t> digests_;   // of the first run's outputs, in their order
  std::vector<double> from_baseline_;    // of variants that change precision: how far all of each output is from the baseline's
  std::vector<double> most_from_truth_;  // how far all of each output may be from the unquantized reference, as the samples tell
  double least_idle_cpu_ms_ = INFINITY;
  LeakWatch leaks_{session_, options_.own_device_bytes};
};

}  // namespace aisp::verify
