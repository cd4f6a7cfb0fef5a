// SPDX-License-Identifier: Apache-2.0
#include "cli/glossary.hpp"

#include <iterator>
#include <vector>

#include "evidence/quantities.hpp"

namespace aisp::cli {
namespace {

// Checks, metrics and findings are the rows of docs/method.md, word for word; tests/end_to_end/commands/test_explain.py compares
// them.
constexpr Term terms[] = {
    {"check", "written",
     "elements that were not written, found by two runs with different poison in the outputs; for results of variable length, "
     "writes beyond their end"},
    {"check", "second_run", "results that differ between two runs on the same inputs by more than the tolerance"},
    {"check", "finite", "NaN and infinity in any element"},
    {"check", "reference",
     "wrong values, compared with the float64 reference on all elements, or on 4096 random ones and both ends; of outputs with "
     "groups, in each group by itself"},
    {"check", "baseline", "an element that differs from the baseline by more than the two tolerances combined"},
    {"check", "same_bits", "outputs whose bits are not those of the variant that `.same_bits_as` names"},
    {"check", "inputs_unchanged", "modified inputs, files included"},
    {"check", "red_zones", "writes in front of or behind a buffer"},
    {"check", "finished", "work that continues after the stream is empty (other streams that were not joined)"},
    {"check", "depends_on_inputs", "outputs that do not change with the inputs: precomputed, remembered or stale"},
    {"check", "memory",
     "memory that each run leaks: of the driver, of a memory pool or of the host; or the machine's memory is exhausted"},
    {"check", "reproducible", "with `--reproducible`: two runs that give different bits"},
    {"check", "hooks", "outputs that were written by `output_length()`"},
    {"check", "gate", "outputs written while the stream was held back, before the execution could have begun"},
    {"check", "early_work", "GPU work on other streams, or in other CUDA contexts, before the execution"},
    {"check", "limits", "limits of the device, or the access policy of a stream, that a run changed and did not restore"},
    {"check", "background_work", "host pairs: CPU time of other threads and of child processes while all should have been idle"},
    {"check", "child_work", "CPU time that child processes used between timed samples, where it is none of their time"},
    {"check", "timed_samples", "outputs of a timed sample that are unwritten, stale or wrong, on inputs renewed at random"},
    {"check", "timed_differently",
     "times that contradict each other: shorter on known inputs than on new ones, or different when timed and when audited"},
    {"check", "late_work", "GPU work after the end of timed samples"},
    {"check", "hidden_work",
     "kernels and copies, recorded by CUPTI, on streams or devices that the timed window does not cover; host functions; a run "
     "whose call takes the host longer than its launches need"},
    {"check", "compiled_kernels",
     "kernels that take more registers or local memory than the variant's `.kernels` allows, or less local memory than it says"},
    {"check", "possible_time",
     "a time shorter than the declared cost allows at the chip's theoretical peaks; on the host, far shorter than it allows at "
     "the measured memory ceiling"},
    {"check", "declared_cost",
     "an impossible cost: negative, empty, or device memory in a host pair; with `verify --deep`, one that hardware counters "
     "contradict"},
    {"check", "repeatable_length", "outputs of variable length that have another length in a second run on the same inputs"},
    {"check", "run", "an exception that a variant threw while it ran or was checked, or host memory that it did not get"},
    {"check", "prepare", "an exception that a variant's one-time work (`prepare`) threw"},
    {"check", "cold_start", "with `--cold-start`: an exception in the first execution of the process"},
    {"check", "cuda", "an error that CUDA returned; the pair ends there, because the context may be lost"},
    {"check", "exception", "an exception that the pair threw outside of its variants, such as in its constructor"},
    {"check", "stage_limit", "a stage that took longer than its limit, so that the process was killed"},
    {"check", "suite_deadline", "the pair that was running when the time of `--suite-timeout` was up"},
    {"check", "signal", "a process that died from a signal, such as SIGSEGV after an invalid memory access"},
    {"check", "stack", "beside `signal`: the functions in which the process crashed, the innermost first"},
    {"check", "killed", "a SIGKILL that aisp did not send: memory ran out, a limit on CPU time was reached, or somebody sent it"},
    {"check", "silent", "a process that closed its result pipe and lived on without a result, so that it was killed"},
    {"check", "no_result", "a process that ended by itself without a result, for example because the pair called `exit()`"},
    {"check", "output", "beside a process that died: the last lines that it printed"},
    {"check", "exit_limit", "a process that did not end in time after its result, which stands"},
    {"check", "processes_left", "processes that the pair had started and that ran on when it had ended; they were killed"},
    {"check", "ranks", "of a pair of several processes: one that could not go on, because another had ended or was elsewhere"},
    {"check", "unkillable", "a process that is still there after SIGKILL, stuck in a kernel driver"},
    {"check", "needs", "of a skipped pair: what this machine lacks, and what to do about it; no failure"},
    {"metric", "rank_skew", "the time from the fastest rank's end of a sample to the slowest's"},
    {"metric", "overlap",
     "the part of the time with a copy between host and GPU, or between GPUs, in which a kernel ran too, in percent; none "
     "without such copies"},
    {"metric", "concurrency",
     "how many kernels ran at once, on average over the time in which any ran: their durations, added up, over that time"},
    {"metric", "idle",
     "time between the start of the first and the end of the last kernel, copy or memset in which none of them ran, in us"},
    {"metric", "idle_share", "idle time in percent of the time from the first start to the last end"},
    {"metric", "kernels", "kernels of one execution; each kernel node of a graph is one"},
    {"metric", "copies", "copies of one execution, inside a GPU too; none without any"},
    {"finding", "failed", "wrong, crashed, timed out, or with a speedup that is no number, in any run given (exit status 1)"},
    {"finding", "missing",
     "the run selected the pair and has no result of it, or a recorded variant no longer exists (exit status 1)"},
    {"finding", "regressed",
     "the value lies below the expected interval, its whole interval lies below the expected value, the two values differ by at "
     "least 1 %, and the possible loss reaches the threshold: from the expected value down to the lower end of the interval, and "
     "1 % more because copies of the same code differ (exit status 3)"},
    {"finding", "slower", "the same, but the loss is certainly smaller than the threshold (exit status 0)"},
    {"finding", "drifted",
     "the ratio held, but variant and baseline both take longer than recorded by more than the threshold, over their whole "
     "intervals (exit status 0)"},
    {"finding", "rebased",
     "the speedup changed because the baseline's time did; the variant takes as long as recorded, within 1 % (exit status 0)"},
    {"finding", "stale",
     "the code changed after it was recorded; counts as what the comparison says, and is red if that is regressed (exit status "
     "0)"},
    {"finding", "other_machine",
     "the host decides its times, and it was recorded on another kind of host, or in a virtual machine with other GPUs; the "
     "output says what differs (exit status 0)"},
    {"finding", "skipped", "it cannot run here, or it ran at another scale or in a mode that is not comparable (exit status 0)"},
    {"finding", "new", "nothing is recorded for this variant or this hardware (exit status 0)"},
    {"finding", "improved", "the opposite of regressed (exit status 0)"},
    {"finding", "ok", "none of these (exit status 0)"},
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
    std::vector<Term> found{std::begin(terms), std::end(terms)};
    for (const evidence::Quantity& quantity : evidence::quantities())
      if (!quantity.meaning.empty()) found.push_back({"column", quantity.id, quantity.meaning});
    return found;
  }();
  return all;
}

}  // namespace aisp::cli
