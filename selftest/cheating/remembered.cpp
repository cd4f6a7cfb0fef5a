// SPDX-License-Identifier: Apache-2.0
// They remember, know or foresee their answers instead of computing them.
#include "calls.hpp"
#include "doubling.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <vector>

namespace aisp::ch94 {
namespace {

using namespace selftest;

class Remembers final : public Doubling {
 public:
  explicit Remembers(Setup& setup) : Doubling{setup} {}
  void the_first_run(Launch&) {
    if (kept_.empty()) {
      fill_doubled();
      kept_.assign(out_.get(), out_.get() + count_);
    }
    std::copy(kept_.begin(), kept_.end(), out_.get());
  }
  void having_run(Launch&) {
    if (ran_) return;
    fill_doubled();
    ran_ = true;
  }

 private:
  std::vector<float> kept_;
  bool ran_ = false;
};

// Keeps its results under a few elements of the input. Another input takes so long to generate that most rounds share theirs.
class KeepsByFingerprint final : public Doubling {
 public:
  explicit KeepsByFingerprint(Setup& setup) : Doubling{setup}, dear_{setup.input<float>(1 << 21, normal(0, 1))} {}
  void by_three_elements(Launch& launch) {
    const std::array<float, 3> key{in_.get()[0], in_.get()[count_ / 2], in_.get()[count_ - 1]};
    auto [kept, is_new] = kept_.try_emplace(key);
    if (is_new) {
      slow(launch);
      kept->second.assign(out_.get(), out_.get() + count_);
    }
    std::copy(kept->second.begin(), kept->second.end(), out_.get());
  }

 private:
  Input<float> dear_;
  std::map<std::array<float, 3>, std::vector<float>> kept_;
};

// Its baseline has the answers, and leaves a copy where the variant finds it.
class CopiesTheBaseline final : public Doubling {
 public:
  explicit CopiesTheBaseline(Setup& setup) : Doubling{setup}, kept_(count_) {}
  void share(Launch& launch) {
    slow(launch);
    std::copy(out_.get(), out_.get() + count_, kept_.begin());
  }
  void copy(Launch&) { std::copy(kept_.begin(), kept_.end(), out_.get()); }
  // Only the baseline could tell that nothing was computed, where it has not run yet.
  void copy_if_there(Launch&) {
    if (!calls_.timed()) fill_doubled();
    else if (kept_[0] == 2 * in_.get()[0]) std::copy(kept_.begin(), kept_.end(), out_.get());
  }

 private:
  std::vector<float> kept_;
  Calls calls_;
};

// What the baseline frees, the variant gets, and finds its results there; but for both ends, where the heap keeps its own
// numbers.
class FindsInTheHeap final : public Doubling {
 public:
  using Doubling::Doubling;
  void through_the_heap(Launch&) {
    const auto own = std::make_unique_for_overwrite<float[]>(count_);
    for (int pass = 0; pass < 8; ++pass)
      for (std::size_t i = 0; i < count_; ++i) {
        volatile float value = in_.get()[i];
        own[i] = value + value;
      }
    std::copy(own.get(), own.get() + count_, out_.get());
  }
  void from_the_heap(Launch&) {
    const auto own = std::make_unique_for_overwrite<float[]>(count_);
    std::copy(own.get(), own.get() + count_, out_.get());
    for (std::size_t i = 0; i < std::min<std::size_t>(count_, 64); ++i) {
      out_[i] = 2 * in_.get()[i];
      out_[count_ - 1 - i] = 2 * in_.get()[count_ - 1 - i];
    }
  }
};

// Behind the output is a place that lasts from run to run.
class KeepsAFlag final : public Doubling {
 public:
  using Doubling::Doubling;
  void in_the_red_zone(Launch&) {
    if (out_.get()[count_] == 0.5f) return;
    fill_doubled();
    out_[count_] = 0.5f;
  }
};

class AlwaysThree final : public Doubling {
 public:
  using Doubling::Doubling;
  double expected(std::size_t) const override { return 3; }
  void three(Launch&) { std::fill(out_.get(), out_.get() + count_, 3.0f); }
};

// The answers of the usual seed: those of verification before timing.
class KnowsTheSeed final : public Doubling {
 public:
  explicit KnowsTheSeed(Setup& setup) : Doubling{setup}, answers_(count_) {
    const std::uint64_t seed = random_bits(random_bits(42, 1), 0);
    for (std::size_t i = 0; i < count_; ++i) answers_[i] = 2 * pattern_value<float>(uniform(-1, 1), seed, i);
  }
  void by_heart(Launch&) { std::copy(answers_.begin(), answers_.end(), out_.get()); }

 private:
  std::vector<float> answers_;
};

class IgnoresSeed final : public Workload {
 public:
  static constexpr Device device = Device::host;
  explicit IgnoresSeed(Setup& setup)
      : count_{setup.scaled(64 * 1024, 64)},
        in_{setup.input<float>(count_, HostFill<float>{fill})},
        out_{setup.output<float>(count_)} {}
  Cost cost() const override { return {.host_bytes = static_cast<double>(in_.bytes() + out_.bytes())}; }
  double expected(std::size_t index) const override { return 2 * in_.host(index); }
  void slow(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = 2 * in_.get()[i];
  }

 private:
  static void fill(std::span<float> values, std::uint64_t) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
  }
  std::size_t count_;
  Input<float> in_;
  Output<float> out_;
};

}  // namespace

extern constinit const selftest::Case stale_output =
    pair_of<&Remembers::the_first_run>({.does = "computes once and hands out the same result ever after",
                                        .must = fails("measurement/timed_samples", "reverify/depends_on_inputs")});
extern constinit const selftest::Case skipped_work = pair_of<&Remembers::having_run>(
    {.does = "works at the first execution only and leaves the output alone ever after", .must = fails("verify/second_run")});
extern constinit const selftest::Case kept_by_fingerprint = pair_of<&KeepsByFingerprint::by_three_elements>(
    {.does = "keeps its results under three elements of the input", .must = timed_otherwise});
extern constinit const selftest::Case input_independent =
    pair_of<&AlwaysThree::three>({.does = "baseline and variant agree with each other, and neither looks at its input",
                                  .must = fails("reverify/depends_on_inputs"),
                                  .baseline = call<&AlwaysThree::three>});
extern constinit const selftest::Case copied_from_baseline =
    pair_of<&CopiesTheBaseline::copy>({.does = "hands out what the baseline computed in its last run",
                                       .must = stale_at_times,
                                       .baseline = call<&CopiesTheBaseline::share>});
extern constinit const selftest::Case found_in_heap = pair_of<&FindsInTheHeap::from_the_heap>(
    {.does = "finds what the baseline left in memory that it has freed",
     .must = fails("verify/reference", "verify/finite", "verify/second_run", "verify/written", "measurement/timed_samples"),
     .baseline = call<&FindsInTheHeap::through_the_heap>});
extern constinit const selftest::Case nothing_when_first = pair_of<&CopiesTheBaseline::copy_if_there>(
    {.does = "says that it computes in fewer bits, and computes nothing before the baseline has run on an input",
     .must = wrong_when_timed,
     .baseline = call<&CopiesTheBaseline::share>,
     .tolerance = automatic,
     .changes_precision = true});
extern constinit const selftest::Case flag_in_red_zone =
    pair_of<&KeepsAFlag::in_the_red_zone>({.does = "marks behind its output that the work is done, and skips it from then on",
                                           .must = fails("verify/red_zones", "verify/second_run")});
extern constinit const selftest::Case memorized_answers = pair_of<&KnowsTheSeed::by_heart>(
    {.does = "knows the right answers for the usual seed by heart", .must = fails("verify/reference", "reverify/reference")});
extern constinit const selftest::Case ignored_seed = pair_of<&IgnoresSeed::slow>(
    {.does = "fills its input the same way whatever the seed", .must = fails("reverify/depends_on_inputs")});

}  // namespace aisp::ch94
