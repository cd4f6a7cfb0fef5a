// SPDX-License-Identifier: Apache-2.0
// A made-up run that holds one of everything a report must show.
#pragma once
#include "evidence/manifest.hpp"
#include "evidence/result.hpp"

namespace aisp::report::sample {

inline evidence::VariantResult variant(const char* name, evidence::VariantRole role, double median_ms) {
  evidence::VariantResult result;
  result.name = name;
  result.role = role;
  evidence::Timing timing;
  timing.summary = {.count = 20,
                    .mean = median_ms * 1.01,
                    .median = median_ms,
                    .std = median_ms * 0.02,
                    .min = median_ms * 0.98,
                    .max = median_ms * 1.1,
                    .p25 = median_ms * 0.99,
                    .p50 = median_ms,
                    .p75 = median_ms * 1.02,
                    .p90 = median_ms * 1.05,
                    .p95 = median_ms * 1.06,
                    .p99 = median_ms * 1.09};
  timing.offset_ms = 0.0022;
  timing.offset_accuracy_ms = 0.0002;
  timing.clock_step_ms = 3.2e-5;
  timing.autocorrelation = 0.07;
  timing.sm_clock_mhz = 1980;
  timing.raw_times_ms = {median_ms + 0.0022};
  timing.host_times_ms = {median_ms + 0.01};
  timing.rounds = {0};
  result.timing = timing;
  result.accuracy = evidence::Accuracy{
      .relative_l2 = 1.25e-7, .limit_relative_l2 = 1e-5, .limit_max_error = 1.6e-4, .samples = 4096, .bitwise_repeatable = true};
  return result;
}

inline evidence::PairResult passed_pair() {
  evidence::PairResult pair;
  pair.target = "ch07:transpose";
  pair.chapter = "ch07";
  pair.name = "transpose";
  pair.source_digest = std::string(64, '7');
  pair.teaches = "one side of a transpose must stride";
  pair.lesson = "half";
  pair.bound = evidence::Bound::memory;
  pair.device = evidence::Device::gpu;
  pair.gpus = {"GPU-0001"};
  pair.best = "tiled";
  pair.seed = 42;
  pair.started_utc = "2026-01-02T03:04:05Z";
  pair.stopped_because = evidence::StopReason::interval_narrow;
  pair.sampling_s = 0.5;
  pair.duty_percent = 34.5;
  pair.variants = {
      variant("direct", evidence::VariantRole::baseline, 4.2), variant("tiled", evidence::VariantRole::optimized, 0.5443),
      variant("half", evidence::VariantRole::optimized, 0.3), variant("library", evidence::VariantRole::library, 1.8),
      variant("no_loads", evidence::VariantRole::control, 0.2)};
  pair.variants[1].speedup = evidence::Speedup{7.716, 7.70, 7.73, evidence::Verdict::faster};
  pair.variants[1].floor = evidence::Floor{.milliseconds = 0.505,
                                           .percent = 92.8,
                                           .limiter = "memory",
                                           .ceiling = "4.25 TB/s",
                                           .source = "provisional",
                                           .held_back_by = "memory",
                                           .limit_from = evidence::LimitFrom::floor};
  pair.variants[2].speedup = evidence::Speedup{1.01, 0.99, 1.03, evidence::Verdict::cannot_tell};
  pair.variants[2].changes_precision = true;
  pair.variants[2].accuracy->unquantized_l2 = 1.6e-3;
  pair.variants[2].checks = evidence::SampleChecks{.samples = 20, .off = {"audited times: a buffer lies in host memory"}};
  pair.variants[3].speedup = evidence::Speedup{2.33, 2.32, 2.34, evidence::Verdict::faster};
  pair.variants[1].not_run = true;
  pair.variants[1].gain = evidence::Gain{"direct", *pair.variants[1].speedup};
  pair.variants[2].gain = evidence::Gain{"tiled", {0.131, 0.129, 0.133, evidence::Verdict::slower}};
  pair.variants[0].library_share = evidence::LibraryShare{"library", 42.9, 42.7, 43.1};
  pair.variants[1].library_share = evidence::LibraryShare{"library", 331, 329, 332};
  pair.variants[2].library_share = evidence::LibraryShare{"library", 91.4, 91, 92};
  pair.variants[4].computes_output = false;
  pair.variants[4].accuracy.reset();
  pair.variants[4].speedup = evidence::Speedup{21, 20, 22, evidence::Verdict::faster};
  pair.variants[1].prepare_ms = 3.5;
  pair.variants[1].gpu_busy_ms = 0.54;
  evidence::InferenceTiming inference;
  inference.requests = 2;
  inference.tokens = 64;
  inference.ttft_ms.mean = inference.ttft_ms.p50 = inference.ttft_ms.p99 = 12.5;
  inference.tpot_ms.mean = inference.tpot_ms.p50 = inference.tpot_ms.p99 = 0.75;
  inference.request_tpot_ms.p50 = 0.76;
  inference.request_tpot_ms.p99 = 0.8;
  inference.tokens_per_second = 1100;
  inference.goodput = evidence::LatencyGoodput{.ttft_target_ms = 20,
                                               .tpot_target_ms = 0.77,
                                               .good_requests = 30,
                                               .all_requests = 40,
                                               .percent = 75,
                                               .requests_per_second = 27.5};
  pair.variants[1].inference = inference;
  pair.variants[0].energy = evidence::Energy{.median_j = 1.25,
                                             .low_j = 1.24,
                                             .high_j = 1.27,
                                             .average_w = 298,
                                             .run_ms = 4.19,
                                             .gb_per_j = 1.72,
                                             .runs = 1440,
                                             .raw_j = {1.25},
                                             .counter_step_ms = 100};
  pair.variants[1].energy = evidence::Energy{.median_j = 0.305,
                                             .low_j = 0.302,
                                             .high_j = 0.307,
                                             .average_w = 561,
                                             .run_ms = 0.544,
                                             .gb_per_j = 7.04,
                                             .ratio = evidence::EnergyRatio{4.1, 4.08, 4.12},
                                             .runs = 11000,
                                             .raw_j = {0.305},
                                             .counter_step_ms = 100};
  for (evidence::VariantResult& variant : pair.variants) {
    variant.cost = {.bytes = 2.147e9, .bytes_of = evidence::ByteKind::device_memory};
    variant.memory = {.device_peak_bytes = std::uint64_t{3} << 30,
                      .device_allocated_bytes = std::uint64_t{2} << 30,
                      .device_reserved_bytes = std::uint64_t{3} << 30,
                      .device_driver_bytes = (std::uint64_t{3} << 30) + (std::uint64_t{12} << 20),
                      .host_peak_rss_bytes = std::uint64_t{400} << 20};
  }
  evidence::Metric metric{.name = "chain_done", .unit = "us", .better = evidence::Direction::lower, .raw = {571}};
  metric.summary.median = 571;
  pair.variants[1].metrics = {metric};
  pair.gpu_states = {{1980, 3201, 512.5, 45, 4}};
  pair.lost = {{evidence::LostKind::cupti, "no CUPTI: library absent"}};
  pair.watchdog = {{evidence::Stage::setup, 0, 0.3, 30, true}, {evidence::Stage::verify, 0.3, 0.5, 60, true}};
  pair.wall_s = 1.5;
  return pair;
}

inline evidence::PairResult ended_pair(const char* name, evidence::Status status, const char* reason) {
  evidence::PairResult pair = passed_pair();
  pair.chapter = "ch10";
  pair.name = name;
  pair.target = std::string{"ch10:"} + name;
  pair.status = status;
  pair.reason = reason;
  return pair;  // with the speedups of a liar: no report may show them
}

inline evidence::SuiteResult suite() {
  evidence::SuiteResult result;
  result.run_id = "20260102_030405";
  result.started_utc = "2026-01-02T03:04:05Z";
  result.wall_s = 75;
  result.pairs = {passed_pair(), ended_pair("wrong", evidence::Status::failed, "tiled: 3 of 4096 checked elements are wrong"),
                  ended_pair("slow", evidence::Status::timeout, "measurement took longer than 15 s"),
                  ended_pair("wild", evidence::Status::crashed, "crashed in warmup (SIGSEGV, invalid memory access)"),
                  ended_pair("multi|gpu", evidence::Status::skipped, "needs 2 GPUs with peer access, found 1")};
  result.pairs[1].problems = {
      {evidence::Stage::verify, "tiled", "reference", "3 of 4096 checked elements are wrong", "look at the edges"}};
  result.pairs.back().ended_after_s = result.wall_s;
  result.pairs[2].timeout_stage = evidence::Stage::measurement;
  result.pairs[2].timeout_limit_seconds = 15;
  result.pairs[2].timeout_duration_seconds = 15.2;
  return result;
}

inline evidence::Manifest manifest() {
  evidence::Manifest m;
  m.run_id = "20260102_030405";
  m.started_utc = "2026-01-02T03:04:05Z";
  m.aisp_version = "0.1.0";
  m.commit = "0123456789abcdef";
  m.gpus = {{.ordinal = 0, .name = "NVIDIA H200", .uuid = "GPU-0001", .sm = 90, .memory_bytes = 150000000000}};
  m.driver_version = "580.95.05";
  m.cpu = "Some CPU";
  m.cpus_usable = 16;
  m.configuration = {{"iterations", "20", "default"}, {"seed", "7", "flag"}};
  m.environment = {{"CUDA_VISIBLE_DEVICES", "0"}};
  return m;
}

}  // namespace aisp::report::sample
