// SPDX-License-Identifier: Apache-2.0
// They do the measured work in functions of the pair that nobody times.
#include "calls.hpp"
#include "doubling.cuh"

namespace aisp::ch97 {
namespace {

using namespace selftest;

class Hooks : public GpuDoubling {
 public:
  explicit Hooks(Setup& setup) : GpuDoubling{setup}, kept_{out_.bytes()} {}
  void nothing(Launch&) {}
  void compute_aside(Launch& launch) {
    doubled(launch);
    kept_.keep(out_, launch.stream);
  }
  void copy(Launch& launch) { kept_.give(out_, launch.stream); }

 protected:
  // Where there is no stream at hand.
  void double_now() const {
    double_kernel<1><<<blocks(), block_threads>>>(in_, out_, count_);
    check(cudaDeviceSynchronize());
  }

 private:
  OwnMemory kept_;
};

class WorksInReference final : public Hooks {
 public:
  using Hooks::Hooks;
  void compute_reference(Launch& launch) override { compute_aside(launch); }
};

class WorksInLength final : public Hooks {
 public:
  using Hooks::Hooks;
  std::size_t output_length(int) const override {
    double_now();
    return count_;
  }
};

class WorksInValidate final : public Hooks {
 public:
  using Hooks::Hooks;
  void validate(std::string_view) override { double_now(); }
};

// After a sample comes the next: what it needs can be done now.
class WorksInMetrics final : public Hooks {
 public:
  using Hooks::Hooks;
  void run(Launch& launch) {
    if (!done_) doubled(launch);
    done_ = false;
  }
  void metrics(std::string_view variant, Metrics&) override {
    if (variant == "slow") return;
    double_now();
    done_ = true;
  }

 private:
  bool done_ = false;
};

// Says that nothing of its output is defined, and defines nothing.
class ComparesNothing final : public Hooks {
 public:
  using Hooks::Hooks;
  std::size_t output_length(int) const override { return 0; }
};

}  // namespace

extern constinit const selftest::Case gpu_work_in_prepare =
    pair_of<&Hooks::copy>({.does = "computes in prepare, and only copies the result when measured",
                           .must = fails("verify/reference"),
                           .prepare = call<&Hooks::compute_aside>});
extern constinit const selftest::Case gpu_work_in_reset =
    pair_of<&Hooks::nothing>({.does = "does the measured work in reset, and nothing when measured",
                              .must = fails("verify/written"),
                              .reset = call<&Hooks::doubled>});
extern constinit const selftest::Case gpu_computed_in_reset =
    pair_of<&Hooks::copy>({.does = "computes in reset, and only copies the result when measured",
                           .must = stale_at_times,
                           .reset = call<&Hooks::compute_aside>});
extern constinit const selftest::Case gpu_work_in_reference = pair_of<&Hooks::copy, WorksInReference>(
    {.does = "computes along with the reference, and only copies the result when measured", .must = stale_at_times});
extern constinit const selftest::Case gpu_work_in_length = pair_of<&Hooks::nothing, WorksInLength>(
    {.does = "does the measured work when it is asked for its output's length", .must = fails("verify/written")});
extern constinit const selftest::Case gpu_work_in_validate =
    pair_of<&Hooks::nothing, WorksInValidate>({.does = "does the measured work in validate", .must = fails("verify/written")});
extern constinit const selftest::Case gpu_work_in_metrics =
    pair_of<&WorksInMetrics::run>({.does = "does the work of the next sample where it reports metrics",
                                   .must = fails("measurement/timed_samples", "warmup/timed_samples", "verify/second_run")});
extern constinit const selftest::Case gpu_nothing_compared =
    pair_of<&Hooks::nothing, ComparesNothing>({.does = "says that its output has no elements, and does nothing",
                                               .must = fails("verify/written", "verify/reference"),
                                               .baseline = call<&Hooks::nothing>});

}  // namespace aisp::ch97
