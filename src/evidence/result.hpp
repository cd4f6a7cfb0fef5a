// SPDX-License-Identifier: Apache-2.0
// The result model: what one run of one pair produced, and a suite of them. Pure data, no CUDA; serialised by evidence/json.hpp.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ceiling_from.hpp"
#include "evidence/profile/profile.hpp"
#include "evidence/words.hpp"

namespace aisp::evidence {

using base::CeilingFrom;

inline constexpr int schema_version = 1;

// The metric of a pair that is judged by its time, and of comparisons of times. Every other is a metric that pairs report.
inline constexpr std::string_view time_metric = "time";

struct EnergyRatio {  // baseline over variant: above 1, the variant needs less
  double value = 0, low = 0, high = 0;
};

// Energy of back-to-back executions with whatever they find in the caches. Whole boards by NVML's counter, idle power included.
struct Energy {
  double median_j = 0, low_j = 0, high_j = 0;  // a run; the median over the windows and its 95 % interval
  double average_w = 0;
  double run_ms = 0;                     // a run, back to back
  double gflop_per_j = 0, gb_per_j = 0;  // of the declared cost; 0 if none is declared
  std::optional<EnergyRatio> ratio;      // absent for the baseline
  std::size_t runs = 0;                  // in all windows
  std::vector<double> raw_j;             // a run, one value a window; equal places were next to one another in time
  double counter_step_ms = 0;            // between two updates of the counter
};

// A measurement that this environment could not give: the kind is for programs, the text for readers.
struct Lost {
  LostKind kind = LostKind::other;
  std::string text;  // "no clock lock: clocks are left as they are"
};

// A failure in words for the reader, with its stage. `check` names the verification or stage check ("inputs_unchanged").
struct Problem {
  Stage stage = Stage::none;
  std::string variant;  // empty: the whole pair
  std::string check;
  std::string message;
  std::string advice;  // what to do about it; may be empty
};

struct Percentile {
  double percent = 0;
  double value = 0;
};

struct Summary {  // summary of one set of samples, in the samples' unit
  std::size_t count = 0;
  double mean = 0, median = 0, std = 0, min = 0, max = 0;
  double p25 = 0, p50 = 0, p75 = 0, p90 = 0, p95 = 0, p99 = 0;
  std::vector<Percentile> custom;
};

// GPU state when a sample was taken.
struct GpuState {
  int sm_clock_mhz = 0;
  int memory_clock_mhz = 0;
  double power_w = 0;
  int temperature_c = 0;
  std::uint64_t throttle_reasons = 0;  // NVML clocks-event-reason bits
};

struct Timing {
  Summary summary;                        // milliseconds, stopwatch offset taken out, equal readings spread over the clock's step
  double offset_ms = 0;                   // the stopwatch's own time, subtracted from every sample
  double offset_accuracy_ms = 0;          // error of the offset, common to all variants
  double clock_step_ms = 0;               // readings are multiples of it; 0: none was seen
  std::optional<double> autocorrelation;  // of the ranks of consecutive samples; absent if they are few or all equal
  std::optional<double> sm_clock_mhz;     // median over its rounds
  std::vector<double> raw_times_ms;       // as read
  std::vector<double> host_times_ms;      // run() called to work finished, host clock
  std::vector<int> rounds;                // round of each sample
};

struct Metric {
  std::string name;
  std::string unit;
  Direction better = Direction::lower;
  Summary summary;
  std::vector<double> raw;
};

// Requests that were answered within the targets.
struct LatencyGoodput {
  double ttft_target_ms = 0, tpot_target_ms = 0;  // 0: none; a request's TPOT is its mean over its tokens
  std::size_t good_requests = 0, all_requests = 0;
  double percent = 0;
  double requests_per_second = 0;  // the good ones, over the time of the samples
};

struct InferenceTiming {
  Summary ttft_ms;                       // of requests
  Summary tpot_ms;                       // of tokens: between each and the one before
  Summary request_tpot_ms;               // of requests: mean over a request's tokens after its first
  std::size_t requests = 0, tokens = 0;  // a sample
  double tokens_per_second = 0;
  std::optional<LatencyGoodput> goodput;  // with a target
};

// A ratio of medians, the reference's over the variant's (for a judged metric, so that above 1 is better), with its 95 %
// interval.
struct Speedup {
  double value = 0;
  double low = 0;
  double high = 0;
  Verdict verdict = Verdict::cannot_tell;
  double effective_rounds = 0;  // number of independent rounds with the same information; 0: not known
};

// The speedup that a step adds.
struct Gain {
  std::string over;  // the baseline or a step before it
  Speedup ratio;
};

// A variant's speed in percent of the library call that a user would make instead, with the 95 % interval.
struct LibraryShare {
  std::string library;  // the fastest of the pair's that is as precise
  double percent = 0, low = 0, high = 0;
};

struct Floor {
  double milliseconds = 0;
  double percent = 0;                                // floor / median * 100
  std::string limiter;                               // "memory", "compute (bf16)", "host to device", ...
  std::string ceiling;                               // "4.25 TB/s"
  std::string source;                                // "provisional: recorded on an H200" or "aisp peak DATE"
  CeilingFrom ceiling_from = CeilingFrom::measured;  // of this ceiling; of several phases or types of math, the worst
  std::string held_back_by;                          // "power cap, 1455 MHz", "memory", "latency", ...: limits.hpp
  LimitFrom limit_from = LimitFrom::none;
};

// The machine's rates that lower bounds were computed from, as far as the pair's variants use them; 0 if not measured.
struct ResultCeilings {
  double memory_bytes_s = 0;              // of the device; of the host for a host pair
  std::map<std::string, double> flops_s;  // by type of math
  std::string source;                     // as in Floor
  CeilingFrom memory_from = CeilingFrom::measured;
  std::map<std::string, CeilingFrom> flops_from;  // those that were not measured
};

// The least work of a variant's run. Bytes are of one kind; a variant that declares none in device memory gives the sum of the
// others.
struct DeclaredCost {
  double flops = 0, bytes = 0;
  std::string math;  // "bf16"; empty without FLOPs
  ByteKind bytes_of = ByteKind::none;
};

struct Accuracy {
  double relative_l2 = 0;  // against the float64 reference, on the samples
  double max_error = 0;    // largest |x - r| / (|r| + rms(r))
  double limit_relative_l2 = 0;
  double limit_max_error = 0;
  double versus_baseline_l2 = 0;  // all elements
  double unquantized_l2 = 0;      // precision-changing variants: against the unquantized reference
  std::size_t samples = 0;
  bool bitwise_repeatable = false;
};

// The reason in SampleChecks::off where no execution of the verification had its CPUs.
inline constexpr const char* busy_when_verified =
    "times of timed rounds against those of verification: the machine was busy, so no execution had its CPUs";

// Counts of the checks on timed samples.
struct SampleChecks {
  int samples = 0;          // timed
  int compared = 0;         // of them: outputs poisoned before, complete and correct after the sample
  int first_on_inputs = 0;  // of them: on inputs that no variant had seen
  int watched = 0;          // of them: nothing happened while the stream was held back, or before the sample on the host
  int wrong = 0;
  std::vector<std::string> off;  // checks that were not possible, each with its reason
};

struct MemoryUse {
  std::uint64_t device_peak_bytes = 0;       // buffers, and the peak of pools and the variant's own allocations in a run
  std::uint64_t device_allocated_bytes = 0;  // buffers, with their red zones
  std::uint64_t device_reserved_bytes = 0;   // buffers, and the peak of the pools' reserve
  std::uint64_t device_driver_bytes =
      0;  // decrease of free memory since before the set-up by the driver's account, after a run; 0: not read
  std::uint64_t host_peak_rss_bytes = 0;
};

// A kernel's compiled resources, per thread.
struct KernelResources {
  std::string name;
  int registers = 0;
  std::uint64_t local_bytes = 0;  // spilled registers and arrays
};

struct VariantResult {
  std::string name;
  VariantRole role = VariantRole::optimized;
  Status status = Status::passed;  // passed, failed or skipped
  std::string reason;              // of a skip or failure, one clause
  std::optional<Timing> timing;
  std::optional<Speedup> speedup;             // over the baseline, of all others; absent when verification failed
  std::optional<Gain> gain;                   // of optimized variants; absent without a speedup
  std::optional<LibraryShare> library_share;  // of the baseline and optimized variants; absent if no library was timed
  std::optional<Floor> floor;                 // absent if no ceiling is known for its cost
  std::optional<Accuracy> accuracy;           // absent if nothing was compared
  std::optional<InferenceTiming> inference;
  std::optional<Energy> energy;  // with --energy, where there is a counter
  std::vector<Metric> metrics;
  // The time in which a kernel or copy ran, in one execution that CUPTI recorded; absent for host pairs and without CUPTI.
  std::optional<double> gpu_busy_ms;
  std::vector<KernelResources> kernels;    // the kernels that CUPTI saw in it; most registers first
  std::optional<Counters> counters;        // absent unless requested and readable
  std::optional<Profile> profile;          // absent unless requested and possible
  std::optional<std::string> nsys_report;  // relative to the run folder; with --profile full, if nsys is installed
  double prepare_ms = 0;                   // one-time work declared by the variant
  bool changes_precision = false;
  bool computes_output = true;  // false: a control that computes nothing valid, so that nothing of it was verified
  bool not_run = false;         // declared as run by nobody before this run
  DeclaredCost cost;
  std::optional<SampleChecks> checks;  // absent if nothing was timed
  MemoryUse memory;
  std::map<std::string, std::string> output_digests;  // hex; at the timed shape, with the run's seed
};

// The note of a pair whose samples depend on those just before them, by the greatest autocorrelation of its variants.
inline constexpr std::string_view drift_note_beginning = "samples resemble those just before them";
std::string drift_note(double autocorrelation);

struct StageRecord {  // the watchdog's record
  Stage stage = Stage::none;
  double started_s = 0;  // since the child started
  double elapsed_s = 0;
  double limit_s = 0;
  bool finished = false;
};

struct PairResult {
  int schema_version = evidence::schema_version;
  std::string target;   // ch07:transpose
  std::string chapter;  // ch07
  std::string name;     // transpose
  std::string teaches;
  std::string lesson;         // name of the optimized variant that shows it, whose speedup is the pair's
  std::string source_digest;  // SHA-256 of the pair's code, hex
  Bound bound = Bound::memory;
  Device device = Device::gpu;
  bool host_dependent = false;    // the host affects its times: comparable only with those of the same machine
  std::vector<std::string> gpus;  // UUIDs used
  Status status = Status::passed;
  std::string reason;                      // of a skip or failure, one clause; what to do in `problems`
  std::vector<VariantResult> variants;     // baseline first
  std::optional<ResultCeilings> ceilings;  // absent if none is known
  std::string best;                        // name of the best optimized variant; empty when none may be claimed
  std::string judged_by{time_metric};
  TimingMode timing_mode = TimingMode::events;
  Start start = Start::released;  // how samples started
  Cache cache = Cache::cold;
  StopReason stopped_because = StopReason::none;
  double scale = 1;                            // of the workload
  std::map<std::string, std::uint64_t> sizes;  // the sizes that the pair declares, as used
  bool sizes_set = false;                      // by --size or --sweep: not the pair's own workload
  std::string sweep_case;                      // of a sweep; empty: none
  bool narrow_types = false;                   // a buffer holds floating-point values of eight bits or fewer, or small codes
  std::vector<std::string> edges;              // names of those that were verified and passed; empty if the pair was timed
  std::uint64_t seed = 0;
  int inputs_drawn = 0;              // how often inputs were renewed while samples were timed
  int inputs_checked = 0;            // of them: the timed outputs of the baseline were compared with the float64 reference
  bool reproducible = false;         // required deterministic algorithms and equal bits
  bool alternated = true;            // variants were timed in turn
  std::vector<GpuState> gpu_states;  // one a round
  double sampling_s = 0;             // from the first timed round to the end of the last
  double duty_percent = 0;           // part of it that lay inside samples
  std::vector<Lost> lost;
  std::vector<Problem> problems;  // errors and warnings with context
  std::vector<std::string> warnings;
  std::vector<std::string> notes;  // of what the figures account for already
  std::vector<StageRecord> watchdog;
  Stage timeout_stage = Stage::none;
  double timeout_limit_seconds = 0;
  double timeout_duration_seconds = 0;
  double wall_s = 0;         // of the child, start to exit
  double ended_after_s = 0;  // when the run had taken so long, over all its parts; 0: not known
  std::string started_utc;   // ISO 8601; empty if the run ended before
  std::string log;           // path of the child's output, relative to the run folder
  bool complete = true;      // false: the child died before it sent its result
  std::string machine;       // in a merged run: one of its manifest's machines; otherwise empty
};

struct Manifest;  // evidence/manifest.hpp

struct Counts {
  int passed = 0, failed = 0, timeout = 0, crashed = 0, skipped = 0;
};

struct SuiteResult {
  int schema_version = evidence::schema_version;
  std::string run_id;  // the artifacts folder's name
  std::string started_utc;
  double wall_s = 0;
  bool interrupted = false;
  std::vector<PairResult> pairs;
};

Counts count(const SuiteResult& suite);
// Returns "verify, tiled"; the stage alone if the problem is not a variant's.
std::string place_of(const Problem& problem);
// Returns the label that is unique in a run: the target, followed by the case of a sweep.
std::string label_in_run(const PairResult& pair);
// The same for a reader, with sizes that the user set.
std::string label_of(const PairResult& pair);
// Returns "m=4096, n=4096"; empty for a pair that declares no sizes.
std::string sizes_text(const PairResult& pair);
// Returns a result's folder inside its run's folder.
std::string folder_of(const PairResult& pair);

// Returns the speedup that may be claimed: only if the pair and the variant passed. Null otherwise, whatever the struct holds.
const Speedup* claimable(const PairResult& pair, const VariantResult& variant);
// The same for its share of a library's speed.
const LibraryShare* claimable_share(const PairResult& pair, const VariantResult& variant);

// Returns the variant that shows the pair's lesson; null if the pair did not pass or it was not timed.
const VariantResult* lesson_variant(const PairResult& pair);
// Returns the best optimized variant that may be claimed, by speedup; null if the pair did not pass or none was timed.
const VariantResult* best_variant(const PairResult& pair);

// Returns the part of the median in which the GPU worked; nothing for host pairs and without CUPTI's record.
std::optional<double> gpu_busy_percent(const VariantResult& variant);

// Returns the median SM clock over the states that report one; nothing if none does.
std::optional<double> median_sm_clock_mhz(std::span<const GpuState> states);

}  // namespace aisp::evidence
