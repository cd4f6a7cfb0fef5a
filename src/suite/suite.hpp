// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "evidence/manifest.hpp"
#include "evidence/result.hpp"
#include "machine/host.hpp"
#include "machine/machine.hpp"
#include "run/parent/supervisor.hpp"
#include "run/parent/world.hpp"
#include "suite/records/run_folder.hpp"
#include "suite/task.hpp"

namespace aisp::suite {

// Receives events while a suite runs; never from two threads at once.
class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual void suite_begun(const std::filesystem::path& /*folder*/, std::size_t /*pairs*/) {}
  virtual void pair_begun(const std::string& /*target*/, const std::vector<int>& /*gpus*/) {}
  virtual void pair_progressed(const std::string& /*target*/, const run::Progress& /*progress*/) {}
  virtual void pair_ended(const evidence::PairResult& /*result*/, std::size_t /*done*/, std::size_t /*pairs*/) {}
  virtual void warned(const std::string& /*line*/) {}
};

struct Finished {
  evidence::SuiteResult suite;
  evidence::Manifest manifest;
  std::filesystem::path folder;
  std::string storage_trouble;  // why files could not be written to their place; empty if they were
  bool kept = true;             // false: other files took the folder's place, and it holds nothing of this run
  bool out_of_time = false;     // --suite-timeout left pairs unmeasured
  base::Exit status = base::Exit::good;
};

// Runs the selected pairs, each in a child process, and writes results as they come; the caller holds lock_gpus(task). Returns
// even when pairs crash, the user interrupts or the disk is full; throws base::Error only before the first pair (folder not
// writable).
Finished run_suite(const Task& task, RunFolder folder, Watcher& watcher);

// Advises the user on pairs that were not measured, or not kept: "continue with --resume artifacts/nightly".
std::string way_on(const Configuration& configuration, const std::filesystem::path& folder);

// 130 when interrupted, else 1 when a pair failed, crashed or timed out, else 0.
base::Exit exit_status(const evidence::SuiteResult& suite);

// Serves the run of process 0 at `address` as process `own`: supervises its ranks of pairs, until the run ends. Returns the run's
// status. Throws base::Error, one line, if process 0 cannot be reached within `patience_s`, turns this process away or is gone.
base::Exit serve(const std::string& address, const std::string& secret, const run::Process& own, double patience_s);

// Lists what the user should know before the first pair: others compute on the GPUs, NVML is missing.
std::vector<std::string> environment_warnings(const machine::Machine& machine, const std::vector<int>& gpus);

// Adds to a result the measurements that this environment lacks, and other processes on its GPUs when the run began.
void add_environment(evidence::PairResult& result, const machine::Machine& machine, const std::vector<int>& gpus);

// Warns of CPU time that other processes took while the pair ran. A result without times needs no warning.
void add_time_of_others(evidence::PairResult& result, const std::optional<machine::CpuTimes>& before,
                        const std::optional<machine::CpuTimes>& after);

// Warns of a CPU quota that was used up while the pair ran: all its threads stood still until the next period.
void add_quota(evidence::PairResult& result, double cpu_quota, const machine::GroupEvents& before,
               const machine::GroupEvents& after);

}  // namespace aisp::suite
