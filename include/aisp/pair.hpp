// SPDX-License-Identifier: Apache-2.0
// Everything the author of a pair needs. docs/adding-a-pair.md shows it in one page.
#pragma once
#include <aisp/check.hpp>
#include <aisp/needs.hpp>
#include <aisp/sizes.hpp>
#include <aisp/tolerance.hpp>
#include <aisp/workload.hpp>

#include <string_view>

namespace aisp {

using Method = void (*)(Workload&, Launch&);
using Factory = Workload* (*)(Setup&);  // the caller deletes what it makes

namespace detail {
template <class Member>
struct ClassOf {
  static_assert(!sizeof(Member), "call<&Class::name> takes a method of this form, and no other: void name(Launch& launch)");
  using type = void;
};
template <class W>
struct ClassOf<void (W::*)(Launch&)> {
  using type = W;
};
// The class is an argument of its own: from the value of a member pointer alone g++ does not see that the class is local to its
// file, gives `invoke` weak linkage, and two pairs whose classes and methods have equal names would share one body.
template <class W, auto method>
struct MethodOf {
  static void invoke(Workload& workload, Launch& launch) { (static_cast<W&>(workload).*method)(launch); }
};
template <class W>
struct Made {
  static Workload* from(Setup& setup) { return new W(setup); }
};
template <auto method>
struct MethodOf<void, method> {  // after the error above, which is to be the only one
  static void invoke(Workload& workload, Launch& launch);
};
}  // namespace detail

// call<&Transpose::tiled>: a member function `void tiled(Launch&)` as a variant's run, prepare or reset.
template <auto method>
inline constexpr Method call = &detail::MethodOf<typename detail::ClassOf<decltype(method)>::type, method>::invoke;

// make<Transpose>: constructs the workload from a Setup.
template <class W>
inline constexpr Factory make = &detail::Made<W>::from;

inline constexpr std::uint32_t all_outputs = ~0u;
inline constexpr std::uint32_t no_outputs = 0;  // a control that computes nothing valid: it is timed, not compared

// Limits for every kernel that a variant launches, per thread; a kernel beyond them fails the variant.
struct KernelLimits {
  int registers = 0;       // at most; 0: no limit
  int local_bytes = -1;    // at most, of local memory: spilled registers and arrays; -1: no limit
  int local_at_least = 0;  // where spilling, or an array in local memory, is the subject
};

// One way to compute a workload.
struct Variant {
  std::string_view name;     // the technique: lower case, digits, underscores
  Method run = nullptr;      // the measured function
  Method prepare = nullptr;  // one-time work on constant data; measured apart and repeated after every refill
  Method reset = nullptr;    // before every execution, outside the timed window (drop the page cache, empty a queue); its inputs
                             // may differ from those of the run that follows
  Needs needs{};             // in addition to the pair's own; unmet ones skip this variant only
  bool changes_precision =
      false;               // checked against expected_quantized(); the error against expected() is reported next to the speedup
  Tolerances tolerance{};  // instead of the pair's
  std::string_view same_bits_as{};  // a variant declared before this one, the baseline often, whose outputs this one's equal bit
                                    // for bit
  bool host_callbacks = false;      // queues host functions on its streams: the CPU's part is a subject of the pair
  bool deterministic = true;        // the same bits every run; false fails under --reproducible
  std::uint32_t outputs = all_outputs;  // bit k: writes the k-th output or inout. A variant's outputs are compared with the
                                        // baseline's in order, also where the types differ (bf16 instead of fp32)
  std::string_view gains_over{};  // for an optimized variant: the reference of its gain, the baseline or an earlier variant;
                                  // empty: the one right before it
  std::string_view best_of[4]{};  // variants of the pair among which it calls itself the fastest: a run checks that none of them
                                  // is faster; of one named x_tuned, x is
  KernelLimits kernels{};         // limits for the compiled kernels
  bool not_run = false;           // for an optimized variant: compiled for a GPU that nobody has run it on; every report says so
};

// One or more variants; there is no empty list.
class Variants {
 public:
  static constexpr std::size_t capacity = 8;
  constexpr explicit Variants(std::size_t count) : count_{count} {}
  constexpr const Variant* begin() const { return items_; }
  constexpr const Variant* end() const { return items_ + count_; }
  constexpr std::size_t size() const { return count_; }
  constexpr bool empty() const { return count_ == 0; }
  constexpr const Variant& operator[](std::size_t i) const { return items_[i]; }

  Variant items_[capacity]{};

 private:
  std::size_t count_;
};

// The same, or none.
class OptionalVariants : public Variants {
 public:
  constexpr OptionalVariants() : Variants{0} {}
  constexpr OptionalVariants(const Variants& list) : Variants{list} {}
};

template <std::size_t count>
constexpr Variants variants(const Variant (&list)[count]) {
  static_assert(count <= Variants::capacity, "a list has at most 8 variants");
  Variants result{count};
  for (std::size_t i = 0; i < count; ++i) result.items_[i] = list[i];
  return result;
}

namespace detail {
Variants a_pair_needs_its_optimized_variants();  // not constexpr: reaching it does not compile
}  // namespace detail

enum class Device : std::uint8_t { gpu, host };
enum class Bound : std::uint8_t { memory, compute, latency, transfer, host };
enum class Cache : std::uint8_t { cold, hot };

// How a sample starts. Released: the stream waits until the whole sample is queued, so launch cost stays out of short kernels.
// Immediate: for pairs whose subject is launch or submission cost, and for variants that wait for the GPU themselves.
enum class Start : std::uint8_t { released, immediate };

// The shape at which the float64 reference is compared: the timed one, or the small one of Setup::shape() if the full one is too
// expensive (variants are then compared with the baseline in full at both).
enum class Verification : std::uint8_t { timed_shape, small_shape };

// Limits of a pair that differ from the defaults. Settings files and flags override them; 0: the default.
struct Overrides {
  int iterations = 0;        // minimum number of rounds; 0: the default
  int warmup = 0;            // rounds
  double setup_seconds = 0;  // stage limits
  double warmup_seconds = 0;
  double measurement_seconds = 0;
};

struct Pair {
  std::string_view teaches;  // one sentence without a full stop
  std::string_view
      lesson{};  // the optimized variant that shows it, whose speedup is the pair's; may be left out if there is only one
  Factory make;
  Variant baseline;  // what a competent newcomer writes, or a default gives
  // The ladder: steps to the lesson and beyond it, in their order.
  Variants optimized = detail::a_pair_needs_its_optimized_variants();
  OptionalVariants controls{};   // show what does not explain the gain: timed in the same rounds, never ranked
  OptionalVariants libraries{};  // calls that a user would make instead: timed in the same rounds, never counted as ours
  Device device = Device::gpu;
  Bound bound = Bound::memory;
  Tolerances tolerance = automatic;
  Needs needs{};
  Cache cache = Cache::cold;
  Start start = Start::released;
  Verification verification = Verification::timed_shape;
  std::string_view judged_by{};  // a metric of the workload's own that decides instead of the time
  bool timeline = false;         // reports how each variant's kernels and copies overlap, and idle time, as metrics
  Overrides overrides{};
  Sizes sizes{};                         // what --size may set, read with Setup::size()
  Cases sweep{};                         // what --sweep measures, one result each
  Cases edges{};                         // sizes that `aisp verify` checks and that are never timed: empty, one element, a tail
  std::size_t reference_samples = 4096;  // outputs compared with the float64 reference; all of them when there are fewer
};

}  // namespace aisp
