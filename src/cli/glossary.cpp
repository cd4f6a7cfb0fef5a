// SPDX-License-Identifier: Apache-2.0
#include "cli/glossary.hpp"

#include <iterator>
#include <vector>

#include "evidence/quantities.hpp"

namespace aisp::cli {
namespace {

constexpr Term terms[] = {
    {"status", "passed", "it ran and every check held"},
    {"status", "failed", "wrong results or an exception; no speedup of it is in any report"},
    {"status", "timeout",
     "a stage went on beyond its limit and the process group was killed; --timeout-multiplier gives more time"},
    {"status", "crashed", "its process died of a signal or ended without a result; output.log in its folder has its last words"},
    {"status", "skipped", "it cannot run here; the reason says what is missing and the way round it"},
    {"verdict", "faster", "the 95 % interval of the speedup excludes 1 and the ratio is at least 1 % above it"},
    {"verdict", "slower", "the 95 % interval of the speedup excludes 1 and the ratio is at least 1 % below it"},
    {"verdict", "cannot_tell",
     "the interval holds 1, the ratio is within 1 % of it, there were fewer than 5 rounds, or a time is too short for the "
     "stopwatch"},
    {"bound", "memory", "bytes of device memory over its bandwidth set the lower bound"},
    {"bound", "compute", "floating-point operations over the rate of their type set the lower bound"},
    {"bound", "latency", "kernels or messages that must follow one another set the lower bound"},
    {"bound", "transfer", "bytes over PCIe or NVLink set the lower bound"},
    {"bound", "host", "it is about the CPU and host memory; no GPU ceiling applies"},
    {"role", "baseline", "what a competent newcomer would write; everything is compared with it"},
    {"role", "optimized", "the same results by the technique that the variant is named after"},
    {"role", "lesson",
     "the optimized variant that shows what the pair teaches; its speedup is the pair's; those before and after it are steps of "
     "the same ladder"},
    {"role", "control",
     "shows what does not explain the gain; timed in the same rounds, never ranked; one that computes no valid output is not "
     "verified, and every report says so"},
    {"role", "library", "a call that a user would make instead, timed in the same rounds and never counted as ours"},
    {"change", "worse",
     "of `compare`: beyond the interval that another process of the same code is expected to measure, by the threshold or "
     "more; a single reading is worse if it changed by the threshold, and decides nothing"},
    {"change", "slightly_worse",
     "of `compare`: outside of the intervals of both runs, but by less than the threshold, or by no more than processes of equal "
     "code differ by; decides nothing"},
    {"change", "perhaps_worse",
     "of `compare`: slightly worse, though by more than the threshold: processes of equal code may differ by as much, above all "
     "where the host decides; decides nothing, and files say slightly_worse"},
    {"change", "better", "of `compare`: the opposite of worse"},
    {"change", "slightly_better", "of `compare`: the opposite of slightly worse"},
    {"change", "perhaps_better", "of `compare`: the opposite of perhaps worse"},
    {"change", "host_decides",
     "of `compare` and `analyze`: the CPU, its memory or the system decide the time, which one process on each side cannot tell "
     "from chance; shown, never a regression"},
    {"change", "single_readings",
     "of `compare`: read once in each run, so that its spread is unknown; shown, never a regression"},
    {"column", "interrupted",
     "of a pair without a result: it was stopped while it ran, by Ctrl-C or a signal to aisp; `run --resume` measures it"},
    {"column", "not_started", "of a pair without a result: the run ended before its turn; `run --resume` measures it"},
    {"column", "declared",
     "of a cost: the bytes and operations that the pair says its variant needs at least. As what limits a lower bound: the least "
     "time follows from the pair's own arithmetic"},
    {"column", "library_share",
     "the variant's speed in percent of the fastest library's that is as precise, with its 95 % interval: \"91 % of cublas\""},
    {"column", "computes_output", "false for a control that computes nothing valid, so that nothing of it was verified"},
    {"column", "not_run",
     "true for a variant that is compiled and that nobody has run, because no such GPU was at hand; once one has run it, its "
     "declaration is to be changed"},
    {"column", "effective_rounds",
     "independent rounds that would tell as much as those taken: fewer where a variant drifts, and its interval is wider for it"},
    {"column", "duty_percent",
     "part of the sampling's time that lay inside samples; a chip at its power cap slows down as it rises"},
    {"column", "sm_clock_mhz", "median SM clock over the rounds"},
    {"column", "clock_step_ms", "the step in which the clock moves; no time is known better than a part of it"},
    {"column", "offset_accuracy_ms", "the stopwatch's own time may be wrong by this, for all variants alike; intervals hold it"},
    {"column", "expected",
     "the median speedup of the runs recorded of this code and hardware, with the interval that further runs fall into"},
    {"column", "change", "measured against expected speedup, in percent"},
    {"column", "measured", "the speedup of this run with its 95 % interval"},
    {"column", "hardware",
     "kind of hardware: the GPU's name without its vendor's, with the number of GPUs where a pair used several; host for host "
     "pairs; and of several machines the id of each fingerprint"},
    {"column", "floor",
     "the longest of the times that bytes, operations, transfers and dependent kernels take at the ceilings of this machine"},
    {"column", "held_back_by",
     "limited by: what kept the variant from its lower bound. A power cap or another clock limit with the clock; the ceiling "
     "that "
     "it is near (80 % and more); with counters (--profile full) the busiest unit, or latency where none is busy (60 %); "
     "launches "
     "and waits where the GPU worked for less than 80 % of the time; else latency or extra work, which counters "
     "tell apart"},
    {"column", "offset_ms", "the stopwatch's own time, measured in every round with a small kernel and taken out of the summary"},
    {"column", "raw_times_ms", "every sample as read, the offset still in it"},
    {"column", "judged_by", "time, or the metric that speedups of this pair are of"},
    {"column", "source_digest",
     "SHA-256 of the pair's code: its instructions for the GPU's architecture and the source of its host code; when it changes "
     "the expectation is stale"},
    {"column", "idle_percent", "with --profile: part of the execution in which no kernel, copy or memset ran"},
    {"column", "overlap_percent", "with --profile: part of the time of copies in which a kernel ran beside them"},
    {"column", "occupancy_percent",
     "with --profile: warps that an SM can hold of a kernel, of those that it can hold at all; theoretical, not measured"},
    {"column", "waves", "with --profile: blocks of a launch by the blocks that all SMs hold at a time"}};

}  // namespace

std::span<const Term> glossary() {
  static const std::vector<Term> all = [] {
    const std::span<const Term> manual = manual_terms();
    std::vector<Term> found{manual.begin(), manual.end()};
    found.insert(found.end(), std::begin(terms), std::end(terms));
    for (const evidence::Quantity& quantity : evidence::quantities())
      if (!quantity.meaning.empty()) found.push_back({"column", quantity.id, quantity.meaning});
    return found;
  }();
  return all;
}

}  // namespace aisp::cli
