// SPDX-License-Identifier: Apache-2.0
// They work while they are checked, and not, or badly, while they are timed.
#include "calls.hpp"
#include "doubling.hpp"

#include <atomic>
#include <bit>
#include <chrono>
#include <limits>

namespace aisp::ch94 {
namespace {

using namespace selftest;

class Loafs final : public Doubling {
 public:
  using Doubling::Doubling;
  void by_count(Launch&) {
    if (!calls_.timed()) fill_doubled();
  }
  void by_half(Launch&) {
    const std::size_t part = calls_.timed() ? count_ / 2 : count_;
    for (std::size_t i = 0; i < part; ++i) out_[i] = 2 * in_.get()[i];
  }
  void by_one_element(Launch&) {
    fill_doubled();
    if (calls_.timed()) out_[count_ / 3] += 1;
  }
  void by_nan(Launch&) {
    fill_doubled();
    if (calls_.timed()) out_[count_ / 2] = std::numeric_limits<float>::quiet_NaN();
  }
  // A race that strikes in one run of many looks like this.
  void once(Launch&) {
    calls_.timed();
    if (calls_.count() % 40 != 9) fill_doubled();
  }
  // Within its tolerance, but not what it computes when it is checked.
  void behind_the_end(Launch&) {
    fill_doubled();
    if (calls_.timed()) out_[count_] = 1;
  }
  void on_the_inputs(Launch&) {
    fill_doubled();
    if (calls_.timed()) const_cast<float*>(in_.get())[7] = 0.5f;
  }
  void start_counting(Launch&) { since_prepare_ = 0; }
  void since_prepare(Launch&) {
    if (++since_prepare_ <= 3) fill_doubled();
  }
  // Bytes that outputs are filled with before they are verified.
  void without_known_poison(Launch&) {
    const auto bits = std::bit_cast<std::uint32_t>(out_.get()[0]);
    if (bits == 0xFBFBFBFBu || bits == 0x7B7B7B7Bu) fill_doubled();
  }
  void by_the_clock(Launch&) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    if (std::chrono::duration_cast<std::chrono::microseconds>(now).count() / 100 % 2 == 0) fill_doubled();
  }

 private:
  Calls calls_;
  int since_prepare_ = 0;
};

// Who is asked for the reference has been checked, and is timed next.
class HearsTheReference final : public Doubling {
 public:
  using Doubling::Doubling;
  double expected(std::size_t index) const override {
    asked_ = ran_.load();
    return Doubling::expected(index);
  }
  void run(Launch&) {
    ran_ = true;
    if (!asked_) fill_doubled();
  }

 private:
  std::atomic<bool> ran_{false};
  mutable std::atomic<bool> asked_{false};
};

}  // namespace

extern constinit const selftest::Case count_calls =
    pair_of<&Loafs::by_count>({.does = "counts its calls and does nothing in those that are timed", .must = wrong_when_timed});
extern constinit const selftest::Case half_when_timed =
    pair_of<&Loafs::by_half>({.does = "does half of the work in calls that are timed", .must = wrong_when_timed});
extern constinit const selftest::Case one_element_when_timed =
    pair_of<&Loafs::by_one_element>({.does = "gets one element wrong in calls that are timed", .must = wrong_when_timed});
extern constinit const selftest::Case nan_when_timed =
    pair_of<&Loafs::by_nan>({.does = "writes a NaN in calls that are timed", .must = wrong_when_timed});
extern constinit const selftest::Case wrong_once =
    pair_of<&Loafs::once>({.does = "leaves the work out in a single call, as a race would", .must = wrong_when_timed});
extern constinit const selftest::Case out_of_bounds_when_timed = pair_of<&Loafs::behind_the_end>(
    {.does = "writes behind its output in calls that are timed", .must = fails("measurement/red_zones", "reverify/red_zones")});
extern constinit const selftest::Case modified_inputs_when_timed =
    pair_of<&Loafs::on_the_inputs>({.does = "changes its input in calls that are timed",
                                    .must = fails("measurement/inputs_unchanged", "measurement/timed_samples")});
extern constinit const selftest::Case count_since_prepare =
    pair_of<&Loafs::since_prepare>({.does = "does nothing from the fourth call after its prepare on",
                                    .must = fails("measurement/timed_samples", "warmup/timed_samples", "verify/written"),
                                    .prepare = call<&Loafs::start_counting>});
extern constinit const selftest::Case poison_known = pair_of<&Loafs::without_known_poison>(
    {.does = "works only where the output holds the bytes that verification fills it with", .must = unwritten_at_times});
extern constinit const selftest::Case every_other_moment =
    pair_of<&Loafs::by_the_clock>({.does = "does nothing in every other tenth of a millisecond", .must = unwritten_at_times});
extern constinit const selftest::Case reference_asked =
    pair_of<&HearsTheReference::run>({.does = "does nothing after it was asked for the reference",
                                      .must = fails("measurement/timed_samples", "warmup/timed_samples", "verify/written")});

}  // namespace aisp::ch94
