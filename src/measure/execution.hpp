// SPDX-License-Identifier: Apache-2.0
// The one way to execute a variant: verification, warm-up, timed rounds, audit and profiles all go through it, so that a variant
// finds the same calls in the same order whatever the execution is for.
#pragma once
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/one_way.hpp"
#include "base/system/entropy.hpp"
#include "measure/child_watch.hpp"
#include "measure/execution/cold_cache.hpp"
#include "measure/execution/gate.hpp"
#include "measure/execution/output_digests.hpp"
#include "measure/execution/settings.hpp"
#include "measure/sample.hpp"
#include "pair/memory/snapshot.hpp"
#include "pair/session.hpp"

namespace aisp::measure {

// A variant waited for the GPU while its stream was held back; the pair must be timed from an immediate start.
class WaitsForGpu : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Callbacks around an execution, in this order. Any may be empty.
struct Frame {
  std::function<void()> ready;              // the devices are idle, nothing but the execution follows
  std::function<void(cudaStream_t)> begin;  // on the pair's stream, after the gate, before the first work; host pairs: null
  std::function<void(cudaStream_t)> end;    // after the last work
};

// The checks around an execution besides its time: requests and answers.
struct Capture {
  // Requests. Copies: of outputs, by the pair's own streams, right after the execution.
  bool digest = true;
  std::vector<pair::Snapshot>* copies = nullptr;
  pair::DigestKey key{};  // of the digests; the pair must not know it before its run has ended
  bool watch = false;     // check that nothing happens while the stream is held back or, on the host, before the execution begins
  std::function<void()> rested{};  // called when the devices are idle, and the pair's last permitted work before its run is done

  std::vector<std::uint64_t> digests{};  // of session.results() in order, right after the execution
  bool looked_while_held = false;        // outputs were looked at before the gate was opened
  bool look_did_not_end = false;         // one was asked for, and waits for the held stream
  bool touched_while_held = false;       // outputs changed before the gate was opened
  double idle_cpu_ms = 0;  // host pairs, with `watch`: the most CPU time of another thread or child while all should be idle
};

// Whether threads of the process got their CPUs: waiting for more than a tenth of the time is a disturbance.
inline bool undisturbed(double cpu_wait_ms, double host_ms) { return cpu_wait_ms <= 0.1 * host_ms; }

struct Executed {
  double host_ms = 0;  // from the opening of the gate (the call of run() without one) to finished work
  double run_ms = 0;   // in the variant's run()
  // Host pairs: how long the threads waited for a CPU meanwhile, all together; nothing if unknown.
  std::optional<double> cpu_wait_ms = 0;
  // Host pairs: CPU time of the calling thread and of the whole process meanwhile, which other programs do not lengthen.
  double caller_cpu_ms = 0, cpu_ms = 0;
  double early_ms = 0;  // how long other streams were busy before the execution
  double late_ms = 0;   // and after it
  bool forced_open = false;

  bool undisturbed() const { return cpu_wait_ms && measure::undisturbed(*cpu_wait_ms, host_ms); }
};

struct Conditions {
  Start start = Start::released;
  Cache cache = Cache::cold;
  bool checked = true;  // outputs are poisoned before and inspected after each execution; false for the harness's own loads
};

// Executes a variant without any measurement, from the same start as a sample, so that the variant cannot tell.
void submit_behind_gate(pair::Session& session, const Variant& variant, Start start, std::chrono::milliseconds longest);

class Executor {
 public:
  Executor(pair::Session& session, const Conditions& conditions);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Throws WaitsForGpu when the gate had to be forced open twice.
  Executed execute(const Variant& variant, Capture& capture, const Frame& frame = {});
  // The two halves of execute(), for profilers that repeat the second. They use no gate: a kernel that waits for the host never
  // runs under a profiler.
  void make_ready(const Variant& variant, Capture& capture);
  Executed perform(const Variant& variant, Capture& capture, const Frame& frame);

  // Returns what the workload reports of the execution that has just ended. In a host pair whose reports take long enough to
  // compute for later executions, they find other inputs in the place of those that these will get.
  std::vector<MetricValue> report(const Variant& variant);

  // Executes `runs` times without a gap after make_ready(); `host_ms` is the time of all.
  Executed perform_block(const Variant& variant, int runs, Capture& capture);

  // Executes the harness's own work: nothing is poisoned and no outputs are inspected. Always from a released start: from an
  // immediate one the launch would count.
  Executed execute(const std::function<void()>& work, const Frame& frame);

  // Executes a variant for the first time, which loads its code and waits for the GPU: the gate does not stay closed.
  void load(const Variant& variant);
  // Returns the poison of the last execution's outputs, a byte from 1 to 255; drawn anew for each, and different from the last
  // two.
  int poison() const { return poison_; }
  void seed(std::uint64_t seed) { random_ = base::OneWayRandom{seed}; }
  // Returns the device settings that the last execution's variant changed and did not restore; they have been restored by now.
  const std::vector<std::string>& changed_limits() const { return changed_limits_; }
  ColdCache* cold() { return cold_.get(); }
  ChildWatch& children() { return children_; }

 private:
  Executed perform_work(const std::function<void()>& work, Capture& capture, const Frame& frame);
  Executed around(const std::function<void()>& work, Start start, Capture* capture, const Frame& frame);
  void empty_caches();
  void warm(const Variant& variant);
  void poison_outputs();
  void start_together();
  void queue_looks(Capture& capture);
  void watch_held(Capture& capture);
  void restore_settings();

  pair::Session& session_;
  Conditions conditions_;
  std::unique_ptr<ColdCache> cold_;
  std::unique_ptr<Gate> gate_;
  std::unique_ptr<DeviceLimits> limits_;
  HostSettings host_settings_;
  ChildWatch children_;
  OutputDigests digests_, held_digests_;
  std::vector<std::uint64_t> poisoned_;  // digests of the outputs before the execution
  base::OneWayRandom random_{base::entropy()};
  int poison_ = pair::default_poison;
  double early_ms_ = 0;
  double least_host_ms_ = INFINITY;  // of the executions so far
  int long_reports_ = 0;             // reports of metrics that took long, of those that saw the inputs of later executions
  bool resets_ = false;              // whether the variant that was made ready has a reset
  bool can_watch_held_ = true;       // false if streams share a hardware queue with the held one
  std::vector<std::string> changed_limits_;
  cudaEvent_t finished_ = nullptr;
};

}  // namespace aisp::measure
