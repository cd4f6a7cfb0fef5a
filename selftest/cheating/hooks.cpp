// SPDX-License-Identifier: Apache-2.0
// They do the measured work in functions of the pair that nobody times.
#include "calls.hpp"
#include "doubling.hpp"

#include <algorithm>
#include <vector>

namespace aisp::ch94 {
namespace {

using namespace selftest;

class Hooks : public Doubling {
 public:
  explicit Hooks(Setup& setup) : Doubling{setup}, kept_(count_) {}
  void nothing(Launch&) {}
  void compute_aside(Launch&) { keep(); }
  void copy(Launch&) { std::copy(kept_.begin(), kept_.end(), out_.get()); }

 protected:
  void keep() {
    for (std::size_t i = 0; i < count_; ++i) kept_[i] = 2 * in_.get()[i];
  }

 private:
  std::vector<float> kept_;
};

class WorksInReference final : public Hooks {
 public:
  using Hooks::Hooks;
  void compute_reference(Launch&) override { keep(); }
};

class WorksInLength final : public Hooks {
 public:
  using Hooks::Hooks;
  std::size_t output_length(int) const override {
    for (std::size_t i = 0; i < count_; ++i) out_.get()[i] = 2 * in_.get()[i];
    return count_;
  }
};

class WorksInValidate final : public Hooks {
 public:
  using Hooks::Hooks;
  void validate(std::string_view) override { fill_doubled(); }
};

// After a sample comes the next: what it needs can be done now.
class WorksInMetrics final : public Hooks {
 public:
  using Hooks::Hooks;
  void run(Launch&) {
    if (!done_) fill_doubled();
    done_ = false;
  }
  void metrics(std::string_view variant, Metrics&) override {
    if (variant == "slow") return;
    fill_doubled();
    done_ = true;
  }

 private:
  bool done_ = false;
};

// Halves instead of doubling, and takes for the truth what lies in the output.
class LooksAtTheAnswer final : public Hooks {
 public:
  using Hooks::Hooks;
  double expected(std::size_t index) const override { return out_.get()[index]; }
  void halve(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = in_.get()[i] / 2;
  }
};

// Says that nothing of its output is defined, and defines nothing.
class ComparesNothing final : public Hooks {
 public:
  using Hooks::Hooks;
  std::size_t output_length(int) const override { return 0; }
};

}  // namespace

extern constinit const selftest::Case work_in_prepare =
    pair_of<&Hooks::nothing>({.does = "does the measured work in prepare, and nothing when measured",
                              .must = fails("verify/written"),
                              .prepare = call<&Hooks::doubled>});
extern constinit const selftest::Case work_in_reset =
    pair_of<&Hooks::nothing>({.does = "does the measured work in reset, and nothing when measured",
                              .must = fails("verify/written"),
                              .reset = call<&Hooks::doubled>});
extern constinit const selftest::Case computed_in_reset =
    pair_of<&Hooks::copy>({.does = "computes in reset, and only copies the result when measured",
                           .must = stale_at_times,
                           .reset = call<&Hooks::compute_aside>});
extern constinit const selftest::Case work_in_reference = pair_of<&Hooks::copy, WorksInReference>(
    {.does = "computes along with the reference, and only copies the result when measured", .must = stale_at_times});
extern constinit const selftest::Case work_in_length = pair_of<&Hooks::nothing, WorksInLength>(
    {.does = "does the measured work when it is asked for its output's length", .must = fails("verify/written")});
extern constinit const selftest::Case work_in_validate =
    pair_of<&Hooks::nothing, WorksInValidate>({.does = "does the measured work in validate", .must = fails("verify/written")});
extern constinit const selftest::Case work_in_metrics =
    pair_of<&WorksInMetrics::run>({.does = "does the work of the next sample where it reports metrics",
                                   .must = fails("measurement/timed_samples", "warmup/timed_samples", "verify/second_run")});
extern constinit const selftest::Case reference_from_output =
    pair_of<&LooksAtTheAnswer::halve>({.does = "is wrong, as its baseline is, and gives its output out as the reference",
                                       .must = fails("verify/reference"),
                                       .baseline = call<&LooksAtTheAnswer::halve>});
extern constinit const selftest::Case nothing_compared =
    pair_of<&Hooks::nothing, ComparesNothing>({.does = "says that its output has no elements, and does nothing",
                                               .must = fails("verify/written", "verify/reference"),
                                               .baseline = call<&Hooks::nothing>});

}  // namespace aisp::ch94
