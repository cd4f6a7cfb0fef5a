// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace aisp::base {

// A live process of a child's group, or one that the child started and that has left the group or lost its parent since.
struct Leftover {
  pid_t pid = 0;
  std::string name;
  bool in_group = true;
};

struct Command {
  std::vector<std::string> argv;                                 // argv[0] with a slash is a path, otherwise searched in PATH
  std::vector<std::pair<std::string, std::string>> environment;  // added to, or instead of, the parent's
  std::vector<std::string> without;                              // names of environment variables that the child must not see
  std::string input;                                             // its stdin; the end of file follows
  std::filesystem::path output;                                  // file for stdout and stderr; empty: /dev/null
  std::uint64_t output_limit_bytes =
      0;                     // 0: none; beyond it the child's writes fail (RLIMIT_FSIZE, so all its files have this limit)
  bool output_pipe = false;  // stdout and stderr are a pipe to the parent instead
  bool result_pipe = false;  // descriptor 3 of the child leads to the parent, who may answer
};

struct ExitState {
  bool signalled = false;
  int code = 0;  // exit status, or the signal's number
  bool core_dumped = false;
  std::uint64_t peak_rss_bytes = 0;
  double user_s = 0;
  double system_s = 0;

  bool good() const { return !signalled && code == 0; }
  std::string text() const;  // "exit status 1", "killed by SIGSEGV"
};

// A child in a process group of its own that dies with the thread that started it. No descriptor of the parent but 0 to 3 reaches
// it.
class Child {
 public:
  static constexpr int result_fd_in_child = 3;

  // Throws base::Error (Exit::unfit) when the program cannot be started.
  explicit Child(const Command& command);
  ~Child();  // terminates what still runs
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  int result_fd() const { return result_fd_; }  // read end, non-blocking; -1 without a result pipe or when it was closed
  int output_fd() const { return output_fd_; }  // likewise
  void answer(std::string_view text) const;     // what the child reads from its descriptor 3; lost if it is gone
  void close_result_fd();
  void close_output_fd();

  bool kill_group(int signal) const;  // false when the group is gone
  std::optional<ExitState> try_wait();
  std::optional<ExitState> wait(double timeout_s);  // nothing when it still runs then
  ExitState wait();

  // SIGTERM to the group, SIGKILL after `grace_s`, then the same to descendants that left the group.
  ExitState terminate(double grace_s = 2.0);
  // Kills what the child started and left behind; returns what was found.
  std::vector<Leftover> kill_leftovers();
  // For a child that does not even die of SIGKILL (stuck in a driver): it is not waited for any more.
  void abandon();

 private:
  pid_t pid_ = -1;
  int result_fd_ = -1;
  int output_fd_ = -1;
  std::string mark_;  // NAME=value in the environment of all that the child starts
  std::optional<ExitState> state_;
  bool cleaned_up_ = false;
};

// A question to a child process, which answers on its result pipe: `executable command 3`.
struct ChildQuestion {
  std::string executable, command;
  std::string input{};                                             // its stdin
  std::vector<std::pair<std::string, std::string>> environment{};  // as in Command
  double limit_s = 60;
  std::string interrupted;  // the error if the user interrupts
};
struct ChildOutcome {
  bool in_time = true;             // false: it was terminated at the limit
  std::optional<ExitState> end{};  // nothing: it closed the pipe, but did not end
  std::string end_text() const;    // "exit status 1", "it hangs"
};

// Starts the child and passes what it answers to `take` until it closes the pipe. Throws base::Error if it cannot be started, and
// (interrupted) when the user interrupts.
ChildOutcome ask(const ChildQuestion& question, const std::function<void(std::string_view)>& take);

// Whether a signal has stopped the process (SIGSTOP, SIGTSTP), or a debugger.
bool is_stopped(pid_t process);

// "SIGSEGV"; "signal 64" for those without a name.
std::string signal_name(int signal);

// Returns a program's path, searched on PATH.
std::optional<std::filesystem::path> find_program(const std::string& name);

}  // namespace aisp::base
