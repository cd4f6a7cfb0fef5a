// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "evidence/result.hpp"
#include "measure/execution.hpp"
#include "pair/session.hpp"

namespace aisp::verify {

// The error beyond its limits, if any. It may be chance where a sum of few values comes near zero, so that correct roundings are
// far off in proportion, and where a few elements have most of an error and samples did not meet them.
struct Difference {
  std::string text{};
  bool may_be_chance = false;
};
inline constexpr double near_limits = 32;  // times a limit: what is farther off is no chance
// `norms` of `elements` elements, beyond `limits`, are near them and of few values.
bool may_be_chance(const pair::Norms& norms, std::size_t elements, const Tolerance& limits);

// The findings of one variant's executions.
struct Outcome {
  std::string_view variant;
  std::vector<evidence::Problem> problems;  // none: everything held
  std::size_t by_chance = 0;                // how many of them other inputs may not show
  evidence::Accuracy accuracy;
  std::map<std::string, std::uint64_t> digests;  // of each output
  std::uint64_t inputs = 0;                      // digest of all that is only read
  double prepare_ms = 0;
  std::vector<double> undisturbed_ms{};  // its executions whose threads had their CPUs, by the host's clock
  double versus_baseline_element = 0;    // the largest element error against the baseline
  double versus_baseline_all_l2 = 0;     // relative L2 of whole outputs; accuracy's is of the farthest group
  double reference_s = 0;                // that the float64 reference of all variants took
  std::string unsupported;               // why this machine cannot run the variant, found out by running it; nothing was checked
  bool passed() const { return problems.empty() && unsupported.empty(); }
  bool may_be_chance() const { return !problems.empty() && by_chance == problems.size(); }
};

struct Options {
  std::uint64_t seed = 42;             // of the inputs, the order of the variants, the poison and the places that are looked at
  std::optional<Start> start{};        // as the timed samples will; the pair's own when empty
  bool compare_with_reference = true;  // false: at the timed shape of a pair that has a small one
  bool compare_with_baseline = true;
  bool may_be_empty = false;        // at sizes of nothing there is no element to compare
  bool require_repeatable = false;  // --reproducible: different bits on a second run are a failure
  bool check_memory = true;   // that nothing is left behind; not when a profiler is attached, whose buffers grow with the work
  int reference_threads = 0;  // 0: one per CPU
  // Device memory of this process; the driver's account is of all that use the GPU. Empty, or nothing: not known.
  std::function<std::optional<std::uint64_t>()> own_device_bytes{};
};

// Records an exception of the variant in its outcome; a CUDA error passes, because the context is gone and with it the whole
// pair.
void guarded(Outcome& outcome, const std::string& check, const std::function<void()>& work);

// Why an output of `elements` elements is not what it was compared with. Each side may be off by its own limits.
Difference difference(const pair::Norms& norms, std::size_t elements, const Tolerance& limits, const Tolerance& other_limits,
                      std::string_view name, std::string_view other);

// Executes every variant twice on new random inputs, as timed samples are executed and in random order, and checks what it did:
// outputs poisoned and completely written, finite, equal to the float64 reference on samples and to the baseline in full, inputs
// and red zones untouched, nothing done before its turn, nothing left running, no memory left behind. The first variant is the
// baseline. Later rounds of inputs must change the outputs: pass the outcomes of an earlier seed as `earlier`. A CUDA error and
// measure::WaitsForGpu pass.
std::vector<Outcome> verify(pair::Session& session, const std::vector<const Variant*>& variants, const Options& options,
                            const std::vector<Outcome>* earlier = nullptr);

// The same for the sizes of an edge. Where all that is wrong with a variant may be chance, it is drawn again, up to seven times,
// and what it shows every time is wrong.
std::vector<Outcome> verify_edge(pair::Session& session, std::vector<const Variant*> variants, Options options);

}  // namespace aisp::verify
