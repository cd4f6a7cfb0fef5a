// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "evidence/result.hpp"
#include "measure/rounds.hpp"
#include "measure/stopwatch.hpp"
#include "pair/session.hpp"
#include "profile/ranges.hpp"
#include "run/child/auditor.hpp"
#include "run/child/child.hpp"
#include "run/child/ground.hpp"
#include "run/child/stages.hpp"
#include "run/results/speedups.hpp"
#include "run/wire/protocol.hpp"
#include "verify/sample_watch.hpp"
#include "verify/verifier.hpp"

namespace aisp::run {

class Profiler;

// One pair, stage by stage, in this process.
class PairRun {
 public:
  PairRun(const pair::Entry& entry, const Request& request, const Reporter& reporter);
  ~PairRun();
  evidence::PairResult run();

 private:
  void run_stages();
  bool skip_unmet();
  void set_up();
  bool time_first_runs();
  bool verify_all(bool again, std::uint64_t seed);
  std::vector<verify::Outcome> verify_from(Start& start, const std::function<std::vector<verify::Outcome>()>& verify);
  void warn_of_loose_limits();
  void warn_of_constant_inputs();
  void verify_small_shape(const verify::Options& options);
  std::vector<verify::Outcome> verify_shapes(const verify::Options& options, bool again);
  bool verify_edges();
  void verify_edge(const Case& edge);
  void absorb_failures(const verify::Outcome& outcome);
  void absorb(const std::vector<verify::Outcome>& outcomes, bool with_reference, bool again = false);
  void warm_up();
  void measure_rounds();
  void sample(measure::SamplingOptions options);
  void send_progress(const RoundProgress& progress);
  measure::Correction correction() const;
  void take_offset();
  void judge();
  void check_samples();
  void check_first_on_inputs(const Timed& timed);
  bool by_host_memory() const;
  void check_remembered(const Timed& timed, std::vector<double> first_ms, std::vector<double> later_ms);
  void check_idle(const Timed& timed, std::vector<double> idle_cpu_ms);
  void compare_with_verified(const Timed& timed);
  void warn_of_drift();
  void check_floors();
  void note_limits(std::size_t index);
  void fail_variant(evidence::VariantResult& variant, const std::string& check, std::string message, std::string advice);
  void check_ceiling(const Timed& timed, const Cost& cost);
  bool costs_are_possible();
  void audit();
  void judge_audit(const Timed& timed, const std::vector<AuditedRun>& runs);
  void note_kernels(const Timed& timed, std::vector<profile::CompiledKernel> kernels);
  void compare_with_timed(const Timed& timed, double busy_ms, double span_ms, double host_ms, double slack_ms);
  void look_inside();
  void send_measured();
  void abandon_session();
  void profile_variants();
  void profile_variant(const Variant& variant, Profiler* profiler);  // no profiler: a host pair
  void no_profile(const std::string& variant, const std::string& reason);
  void note_host_memory();
  void measure_energy();
  void account_memory();
  void count();
  void tear_down();
  void settle();
  void send_partial();

  evidence::VariantResult& result_of(std::string_view variant);
  std::vector<const Variant*> active() const;  // baseline first; without what was skipped and libraries that failed
  void leave_out(evidence::VariantResult& library, const std::string& why);
  void problem(std::string variant, std::string check, std::string message, std::string advice = {});
  std::unique_ptr<measure::Stopwatch> make_stopwatch();
  pair::SessionOptions session_options(bool small_shape) const;

  const Pair& pair_;
  const Request& request_;
  const Reporter& reporter_;
  Stages stages_;
  evidence::PairResult result_;
  std::unique_ptr<Ground> ground_;
  std::unique_ptr<pair::Session> session_;
  std::unique_ptr<measure::Stopwatch> stopwatch_;
  std::unique_ptr<verify::SampleWatch> watch_;
  std::vector<verify::Outcome> outcomes_;  // at the timed shape, with the run's seed
  std::vector<Timed> timed_;
  std::set<std::size_t> limits_told_;  // variants whose changed limits have been told
  std::vector<double> probe_ms_;       // raw readings of the stopwatch for the least work
  double probe_duration_ms_ = 0;       // what that work takes by itself
  bool probe_measured_ = false;        // by CUPTI, not assumed
  double offset_ms_ = 0;
  std::uint64_t free_before_bytes_ = 0;  // of device memory, before anything of the pair was allocated
  Start start_ = Start::released;
  std::string edge_;  // "edge empty (rows=0)" while it is verified
};

}  // namespace aisp::run
