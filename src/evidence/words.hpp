// SPDX-License-Identifier: Apache-2.0
// The closed sets of words in results: an enum for each, and the one table of its texts (base/words.hpp), which appear in JSON,
// CSV, Markdown and on screens. Code decides by the enum. Open sets are plain text: metrics, units, checks, names of variants.
#pragma once
#include <cstdint>
#include <string_view>

#include "base/words.hpp"

namespace aisp::evidence {

template <base::HasWords E>
constexpr std::string_view to_string(E value) {
  return base::word_for(value);
}

enum class Status { passed, failed, timeout, crashed, skipped };
constexpr base::Words<5> words_of(Status) { return {{"passed", "failed", "timeout", "crashed", "skipped"}}; }

enum class Verdict { faster, slower, cannot_tell };  // only a terminal shows "cannot tell"
constexpr base::Words<3> words_of(Verdict) { return {{"faster", "slower", "cannot_tell"}}; }

enum class Direction { lower, higher };  // which of two values is better
constexpr base::Words<2> words_of(Direction) { return {{"lower", "higher"}}; }

enum class VariantRole { baseline, optimized, control, library };
constexpr base::Words<4> words_of(VariantRole) { return {{"baseline", "optimized", "control", "library"}}; }

enum class LostKind { other, cupti, counters, counters_refused, profile, tool_profile, energy };
constexpr base::Words<7> words_of(LostKind) {
  return {{"other", "cupti", "counters", "counters_refused", "profile", "tool_profile", "energy"}};
}

// The device that a pair runs on, and what bounds it, as pairs declare them (aisp/pair.hpp).
enum class Device : std::uint8_t { gpu, host };
constexpr base::Words<2> words_of(Device) { return {{"gpu", "host"}}; }

enum class Bound : std::uint8_t { memory, compute, latency, transfer, host };
constexpr base::Words<5> words_of(Bound) { return {{"memory", "compute", "latency", "transfer", "host"}}; }

enum class TimingMode { events, kernel, do_bench, timer };
constexpr base::Words<4> words_of(TimingMode) { return {{"events", "kernel", "do_bench", "timer"}}; }

// How samples on a GPU start. The host has neither a stream nor an L2 to prepare.
enum class Start : std::uint8_t { released, immediate, none };
constexpr base::Words<3> words_of(Start) { return {{"released", "immediate", "none"}}; }

enum class Cache : std::uint8_t { cold, hot, none };
constexpr base::Words<3> words_of(Cache) { return {{"cold", "hot", "none"}}; }

// The reason why sampling ended. None: nothing was sampled.
enum class StopReason : std::uint8_t { none, interval_narrow, time_budget, fixed_iterations, most_rounds, stage_limit };
constexpr base::Words<6> words_of(StopReason) {
  return {{"", "interval narrow", "time budget", "fixed iterations", "most rounds", "stage limit"}};
}

// The source of the reason why a variant is not at its floor: the chip's own throttle reasons, nearness to the floor, the
// counters, or without them only how busy the GPU was.
enum class LimitFrom : std::uint8_t { none, throttling, floor, counters, times };
constexpr base::Words<5> words_of(LimitFrom) { return {{"", "throttling", "floor", "counters", "times"}}; }

// The path that the bytes of a declared cost cross. Several: they are the sum of more than one kind.
enum class ByteKind : std::uint8_t { none, device_memory, host_memory, host_to_device, device_to_host, peer, several };
constexpr base::Words<7> words_of(ByteKind) {
  return {{"", "device memory", "host memory", "host to device", "device to host", "peer", "several"}};
}

// The command of aisp that made a log of results. Verify times nothing.
enum class LogCommand : std::uint8_t { run, verify };
constexpr base::Words<2> words_of(LogCommand) { return {{"run", "verify"}}; }

// The stage of an event: before the pair ran (selection), as its process started, in one of its stages, as its process ended, or
// when the whole suite's time was up.
enum class Stage : std::uint8_t {
  none,
  selection,
  start,
  setup,
  verify,
  edges,
  warmup,
  measurement,
  audit,
  energy,
  reverify,
  counters,
  profiling,
  teardown,
  exit,
  suite
};
constexpr base::Words<16> words_of(Stage) {
  return {{"", "selection", "start", "setup", "verify", "edges", "warmup", "measurement", "audit", "energy", "reverify",
           "counters", "profiling", "teardown", "exit", "suite"}};
}

}  // namespace aisp::evidence
