// SPDX-License-Identifier: Apache-2.0
// They leave something behind: memory, processes, closed files.
#include "calls.hpp"
#include "doubling.hpp"

#include <unistd.h>

namespace aisp::ch93 {
namespace {

using namespace selftest;

class Traces final : public Doubling {
 public:
  using Doubling::Doubling;
  void leaking(Launch& launch) {
    char* volatile lost = new char[4 << 20];
    for (std::size_t i = 0; i < (4u << 20); i += 4096) lost[i] = 1;
    doubled(launch);
  }
  // Not while anybody looks at what a run leaves behind.
  void leaking_when_timed(Launch& launch) {
    if (calls_.timed()) leaking(launch);
    else doubled(launch);
  }
  void forking(Launch& launch) {
    if (!done_)
      for (int i = 0; i < 3; ++i)
        if (::fork() == 0)
          for (;;) ::pause();
    done_ = true;
    doubled(launch);
  }
  void closing(Launch&) {
    for (int descriptor = 3; descriptor < 1024; ++descriptor) ::close(descriptor);
    hang();
  }

 private:
  Calls calls_;
  bool done_ = false;
};

}  // namespace

extern constinit const selftest::Case leak_memory =
    pair_of<&Traces::leaking>({.does = "forgets 4 MB at every execution", .must = fails("verify/memory")});
extern constinit const selftest::Case leak_when_timed = pair_of<&Traces::leaking_when_timed>(
    {.does = "forgets 4 MB at each execution that is timed", .must = fails("measurement/memory", "reverify/memory")});
extern constinit const selftest::Case fork_children = pair_of<&Traces::forking>(
    {.does = "leaves child processes behind that hold every descriptor open", .must = passes_with("exit/processes_left")});
extern constinit const selftest::Case close_pipe = pair_of<&Traces::closing>(
    {.does = "closes every descriptor but the first three, then stays", .must = crashes("verify/silent")});

}  // namespace aisp::ch93
