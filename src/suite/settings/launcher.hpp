// SPDX-License-Identifier: Apache-2.0
// The launcher that started this process together with others (srun, mpirun, torchrun, an indexed Job), from the variables that
// it sets.
#pragma once
#include <functional>
#include <optional>
#include <string>

namespace aisp::suite {

struct Launched {
  std::string launcher;  // "Slurm"
  int index = 0, count = 1;
  int local_index = 0;  // among those on this machine
  std::string address;  // where process 0 listens (base/system/message_link.hpp)
  std::string secret;   // the same in all processes of the run, and in no others
};

// Returns this process's place among those that were started with it; nothing if it is one by itself. `rendezvous`: HOST:PORT,
// where process 0 listens; "none", if the launcher is to be ignored; empty, if the launcher says where. `variable` gives the
// value of an environment variable, or null. Throws base::Error for variables that contradict each other.
std::optional<Launched> find_launcher(const std::string& rendezvous,
                                      const std::function<const char*(const char* name)>& variable);

// Returns the first host of a list of Slurm's: "gpu[007-010,12]" gives "gpu007".
std::string first_host(const std::string& list);

}  // namespace aisp::suite
