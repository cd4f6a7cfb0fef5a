// SPDX-License-Identifier: Apache-2.0
// Declarations of a self-test pair: the pair, and how aisp must detect its fault. A file of the folder selftest is a family of
// such pairs: methods of few classes, and a row for each pair.
#pragma once
#include <aisp/pair.hpp>

#include <array>
#include <cstdint>
#include <string_view>

namespace aisp::selftest {

enum class Ends : std::uint8_t { passed, failed, timeout, crashed };

// The check that must complain, as "verify/written": the stage, and the check.
struct Complaint {
  std::string_view stage{};
  std::string_view check{};

  constexpr Complaint() = default;
  constexpr Complaint(const char* text) {  // NOLINT(google-explicit-constructor): rows of a table
    const std::string_view whole{text};
    const std::size_t slash = whole.find('/');
    if (slash == 0 || slash + 1 >= whole.size()) throw "a complaint is a stage and a check, as verify/written";
    stage = whole.substr(0, slash);
    check = whole.substr(slash + 1);
  }
};

struct Expected {
  Ends ends = Ends::passed;
  // One of these must have complained; more than one only if timing decides which check is first. None: a correct pair, which
  // must get no complaint.
  std::array<Complaint, 5> by{};
  double limit_s = 0;  // of the first complaint's stage, for pairs that never end; 0: the default
  bool spy = false;    // throws when it can tell timed runs from others, and must pass because it cannot

  constexpr bool honest() const { return by[0].check.empty() && !spy; }
};

inline constexpr Expected passes{};
inline constexpr Expected sees_nothing{.spy = true};
template <class... Others>
constexpr Expected fails(Complaint first, Others... others) {
  return {Ends::failed, {first, Complaint{others}...}};
}
constexpr Expected crashes(Complaint by) { return {Ends::crashed, {by}}; }
constexpr Expected hangs(Complaint by, double limit_s) { return {Ends::timeout, {by}, limit_s}; }
// The pair passes, and `by` is reported.
constexpr Expected passes_with(Complaint by) { return {Ends::passed, {by}}; }

struct Case {
  Expected expected;
  bool reproducible = false;  // runs with --reproducible
  bool needs_cupti = false;   // nothing but the profiler can see it
  bool copies = false;        // baseline and optimized variant are the same function; neither may be called faster
  int rounds = 0;             // timed rounds at least, where a check needs more than others do
  Pair pair;
};

// A row: the defaults are those of most self-test pairs.
struct Row {
  std::string_view does;  // in words
  Expected must = passes;
  Method baseline = nullptr;  // the class's `slow`
  Method prepare = nullptr;
  Method reset = nullptr;
  Tolerance tolerance = exact;
  bool reproducible = false;
  bool needs_cupti = false;
  bool copies = false;
  int rounds = 0;
  bool host_callbacks = false;
  bool deterministic = true;
  bool changes_precision = false;
  Cache cache = Cache::cold;
  Start start = Start::released;
  Verification verification = Verification::timed_shape;
  std::string_view judged_by{};
  Needs needs{};
  std::string_view best_of{};  // calls itself at least as fast as this variant
};

// Returns the pair whose optimized variant is `method`, a member of W or of a base class of W.
template <auto method, class W = typename detail::ClassOf<decltype(method)>::type>
constexpr Case pair_of(const Row& row) {
  return {.expected = row.must,
          .reproducible = row.reproducible,
          .needs_cupti = row.needs_cupti,
          .copies = row.copies,
          .rounds = row.rounds,
          .pair = {.teaches = row.does,
                   .make = make<W>,
                   .baseline = {"slow", row.baseline != nullptr ? row.baseline : call<&W::slow>},
                   .optimized = variants({{.name = "doubled",
                                           .run = call<method>,
                                           .prepare = row.prepare,
                                           .reset = row.reset,
                                           .changes_precision = row.changes_precision,
                                           .host_callbacks = row.host_callbacks,
                                           .deterministic = row.deterministic,
                                           .best_of = {row.best_of}}}),
                   .device = W::device,
                   .bound = W::device == Device::host ? Bound::host : Bound::memory,
                   .tolerance = row.tolerance,
                   .needs = row.needs,
                   .cache = row.cache,
                   .start = row.start,
                   .verification = row.verification,
                   .judged_by = row.judged_by}};
}

}  // namespace aisp::selftest
