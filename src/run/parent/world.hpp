// SPDX-License-Identifier: Apache-2.0
// A run of several processes that a launcher started (srun, mpirun, torchrun, an indexed Job). Process 0 is the parent of the
// run. The others connect to it and supervise ranks of pairs on their own machines (suite/guest.cpp). These connections carry
// control alone: what a pair sends between its ranks takes ways of its own.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/system/message_link.hpp"
#include "evidence/manifest.hpp"
#include "run/parent/supervisor.hpp"

namespace aisp::run {

// Kinds of messages between process 0 and the others.
enum WorldMessage : char {
  world_hello = 'h',    // what: the run's secret; body: a Process as JSON
  world_welcome = 'w',  // all processes have come
  world_end = 'e',      // body: the exit status of the run
  rank_begins = 'b',    // what: the name of the rank's log; body: RankOrder as JSON
  rank_waits = 'q',     // what: "yes" or "no"; a rank's limits do not count the time in which it waits for others
  rank_alone = 'a',     // another rank has ended long ago
  rank_stops = 's',     // the user interrupts
  rank_works = 'k',     // the process is there
  rank_log = 'l',       // body: what the rank printed
  rank_ended = 'o',     // body: its SupervisedRun as JSON, without variants
};

// A process of the run, as it describes itself.
struct Process {
  int index = 0, count = 1;
  std::string host;
  std::string clock;  // equal in processes that share a machine's clock
  std::string build;
  std::vector<std::string> command_line;
  std::vector<std::string> gpus;  // UUIDs of all that it may use
  evidence::ManifestGpu gpu;      // its rank's; without a UUID: none
};
void to_json(nlohmann::json& json, const Process& process);
void from_json(const nlohmann::json& json, Process& process);
// "process 3 on node7"
std::string name_of(const Process& process);

struct RankOrder {
  Request request;
  bool lock_gpu = false;  // process 0, which locks all GPUs that it may use, does not see the rank's
};
void to_json(nlohmann::json& json, const RankOrder& order);
void from_json(const nlohmann::json& json, RankOrder& order);
void to_json(nlohmann::json& json, const SupervisedRun& outcome);
void from_json(const nlohmann::json& json, SupervisedRun& outcome);

// Process 0's end of the connections.
class World {
 public:
  // Listens at `address` and returns when all processes have come. Throws base::Error, one line, if they do not within
  // `patience_s`, or do not fit together.
  World(std::string address, std::string secret, Process own, double patience_s);
  ~World() { end(base::Exit::failed); }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const std::vector<Process>& processes() const { return processes_; }
  // The place where ranks meet (run/parent/rank_hub.hpp).
  const std::string& address() const { return address_; }
  int listener() const { return listener_.get(); }

  // Like run::supervise(), in the process that has the number of the request's rank. Thread-safe for different ranks.
  SupervisedRun supervise(const pair::Entry& entry, const Request& request, const Supervision& supervision);
  // Ends all other processes with this status; the first call counts.
  void end(base::Exit status);

 private:
  SupervisedRun follow(const pair::Entry& entry, const Request& request, const Supervision& supervision);
  void gather(double patience_s);
  bool greet(base::MessageLink& stranger);
  void take(Process process, base::MessageLink link);
  std::vector<int> missing() const;

  std::string address_, secret_;
  std::vector<Process> processes_;
  std::vector<base::MessageLink> links_;  // by process; the first stays closed
  base::MessageLink refused_;             // of a process that does not fit, which learns the run's end too
  base::Descriptor listener_;
  bool ended_ = false;
};

// Returns the number of machines of the first `ranks` processes.
int machine_count(const std::vector<Process>& processes, int ranks);

}  // namespace aisp::run
