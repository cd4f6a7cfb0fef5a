// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "evidence/manifest.hpp"
#include "evidence/result.hpp"
#include "machine/machine.hpp"
#include "pair/registry.hpp"
#include "run/handshake.hpp"
#include "run/supervisor.hpp"
#include "suite/configuration.hpp"
#include "suite/placement.hpp"
#include "suite/run_folder.hpp"

namespace aisp::suite {

// Told what happens while a suite runs; never by two threads at once.
class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual void suite_begun(const std::filesystem::path& /*folder*/, std::size_t /*pairs*/) {}
  virtual void pair_begun(const std::string& /*target*/, const std::vector<int>& /*gpus*/) {}
  virtual void pair_progressed(const std::string& /*target*/, const run::Progress& /*progress*/) {}
  virtual void pair_ended(const evidence::PairResult& /*result*/, std::size_t /*done*/, std::size_t /*pairs*/) {}
  virtual void warned(const std::string& /*line*/) {}
};

struct Task {
  std::vector<const pair::Entry*> selected;
  Configuration configuration;
  machine::Machine machine;
  std::vector<std::string> command_line;
  bool resumed = false;                     // take over what the folder's results.jsonl holds
  std::optional<run::Counterpart> against;  // another executable, whose pairs take turns with these
  std::vector<std::string> wanted;          // what the user named; empty: all
};

struct Finished {
  evidence::SuiteResult suite;
  evidence::Manifest manifest;
  std::filesystem::path folder;
  std::string storage_trouble;  // why not all could be written; empty: it was
  bool out_of_time = false;     // --suite-timeout left pairs unmeasured
  base::Exit status = base::Exit::good;
};

// Runs the selected pairs, each in a child process, and writes results as they come. Returns even when pairs crash, the user
// interrupts or the disk is full; throws base::Error only before the first pair (GPU taken, folder not writable).
Finished run_suite(const Task& task, RunFolder folder, Watcher& watcher);

// 130 when interrupted, else 1 when a pair failed, crashed or timed out, else 0.
base::Exit exit_status(const evidence::SuiteResult& suite);

}  // namespace aisp::suite
