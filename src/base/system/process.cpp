// SPDX-License-Identifier: Apache-2.0
#include "base/system/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/system/clock.hpp"
#include "base/system/files.hpp"
#include "base/system/interrupt.hpp"
#include "base/text.hpp"

extern "C" char** environ;

namespace aisp::base {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot_start(const Command& command, const std::string& why) {
  throw Error{
      Exit::unfit,
      "cannot start " + (command.argv.empty() ? std::string{"a program without a name"} : command.argv.front()) + ": " + why};
}

// Everything that allocates is done before fork: between fork and exec only async-signal-safe calls are allowed.
struct Prepared {
  std::string program;
  std::vector<std::string> environment;
  std::vector<char*> argv, envp;
};

bool named(const char* entry, const std::string& name) {
  return std::strncmp(entry, name.c_str(), name.size()) == 0 && entry[name.size()] == '=';
}

Prepared prepare(const Command& command, const std::string& mark) {
  Prepared prepared;
  if (command.argv.empty()) cannot_start(command, "no command given");
  const std::optional<fs::path> program = find_program(command.argv.front());
  if (!program) cannot_start(command, "not found on PATH");
  prepared.program = *program;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const bool replaced = std::any_of(command.environment.begin(), command.environment.end(),
                                      [&](const auto& variable) { return named(*entry, variable.first); });
    const bool removed =
        std::any_of(command.without.begin(), command.without.end(), [&](const std::string& name) { return named(*entry, name); });
    if (!replaced && !removed) prepared.environment.emplace_back(*entry);
  }
  for (const auto& [name, value] : command.environment) prepared.environment.push_back(name + "=" + value);
  prepared.environment.push_back(mark);
  for (const std::string& argument : command.argv) prepared.argv.push_back(const_cast<char*>(argument.c_str()));
  for (std::string& entry : prepared.environment) prepared.envp.push_back(entry.data());
  prepared.argv.push_back(nullptr);
  prepared.envp.push_back(nullptr);
  return prepared;
}

// The child's stdin: a deleted file, so that no writer has to keep up with the reader.
int input_file(const Command& command) {
  if (command.input.empty()) return ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  Descriptor file{static_cast<int>(::syscall(SYS_memfd_create, "aisp-input", 1u /* MFD_CLOEXEC */))};
  if (!file.open()) return -1;
  if (const int error = write_all(file.get(), command.input); error != 0) {
    file.close();
    errno = error;
    return -1;
  }
  ::lseek(file.get(), 0, SEEK_SET);
  return file.release();
}

int output_file(const Command& command) {
  if (command.output.empty()) return ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  return ::open(command.output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
}

struct ChildEnds {
  int input, output, results, failure;
};

void limit_output(std::uint64_t bytes) {
  if (bytes == 0) return;
  const rlimit limit{bytes, bytes};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  ::signal(SIGXFSZ, SIG_IGN);  // writes fail with EFBIG instead of killing
}

// Why the child does not become what it should, errno, for the parent, who reads this pipe until exec closes it.
[[noreturn]] void give_up(int failure) {
  const int error = errno;
  write_all(failure, {reinterpret_cast<const char*>(&error), sizeof error});
  ::_exit(127);
}

// Out of the way of 0 to 3, since the parent may have had those closed. The way to complain moves first.
void move_up(ChildEnds& ends) {
  for (int* end : {&ends.failure, &ends.input, &ends.output, &ends.results}) {
    if (*end < 0) continue;
    const int moved = ::fcntl(*end, F_DUPFD_CLOEXEC, Child::result_fd_in_child + 1);
    if (moved < 0) give_up(ends.failure);
    *end = moved;
  }
}

void put_in_place(const ChildEnds& ends) {
  for (const auto& [end, number] : {std::pair{ends.input, 0}, std::pair{ends.output, 1}, std::pair{ends.output, 2},
                                    std::pair{ends.results, Child::result_fd_in_child}})
    if (end >= 0 && ::dup2(end, number) < 0) give_up(ends.failure);
}

// Runs in the child, async-signal-safe throughout. The parent hears of whatever fails.
[[noreturn]] void become(const Prepared& prepared, const Command& command, ChildEnds ends, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // the parent died in between
  move_up(ends);
  put_in_place(ends);
  // Descriptors of libraries that forgot CLOEXEC. CLOSE_RANGE_CLOEXEC keeps the failure pipe open until exec.
  const unsigned first = ends.results >= 0 ? 4u : 3u;
  if (::syscall(SYS_close_range, first, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */) != 0)
    for (int number = static_cast<int>(first); number < 1024; ++number) ::fcntl(number, F_SETFD, FD_CLOEXEC);
  limit_output(command.output_limit_bytes);
  for (int signal = 1; signal < 32; ++signal)
    if (signal != SIGXFSZ || command.output_limit_bytes == 0) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(prepared.program.c_str(), prepared.argv.data(), prepared.envp.data());
  give_up(ends.failure);
}

ExitState exit_state(int status, const rusage& usage) {
  ExitState state;
  state.signalled = WIFSIGNALED(status);
  state.code = state.signalled ? WTERMSIG(status) : WEXITSTATUS(status);
  state.core_dumped = state.signalled && WCOREDUMP(status);
  state.peak_rss_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  state.user_s = static_cast<double>(usage.ru_utime.tv_sec) + static_cast<double>(usage.ru_utime.tv_usec) * 1e-6;
  state.system_s = static_cast<double>(usage.ru_stime.tv_sec) + static_cast<double>(usage.ru_stime.tv_usec) * 1e-6;
  return state;
}

std::string new_mark() {
  static std::atomic<unsigned> count{0};
  return "AISP_PROCESS_TREE=" + std::to_string(::getpid()) + "." + std::to_string(count++) + "." +
         std::to_string(static_cast<long long>(monotonic_s() * 1e6));
}

// Returns what a file of /proc holds; nothing of a process that has ended.
std::string text_of(const fs::path& file) { return try_read_file(file, std::size_t{64} << 20).value_or(""); }

struct ProcessStat {
  std::string name;
  char state = 'Z';
  pid_t group = 0;
};

// "PID (name) S PPID PGRP ..."; the name may hold blanks and parentheses, so the last ')' ends it.
ProcessStat read_stat(const std::filesystem::path& process) {
  const std::string text = text_of(process / "stat");
  const std::size_t open = text.find('('), close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos) return {};
  ProcessStat stat{.name = text.substr(open + 1, close - open - 1)};
  pid_t parent = 0;
  std::istringstream{text.substr(close + 1)} >> stat.state >> parent >> stat.group;
  return stat;
}

bool has_mark(const std::filesystem::path& process, const std::string& mark) {
  const std::string environment = '\0' + text_of(process / "environ") + '\0';
  return environment.find('\0' + mark + '\0') != std::string::npos;
}

// Finds the live processes of a group, and those that carry `mark` ("NAME=value") in their environment.
std::vector<Leftover> find_leftovers(pid_t group, const std::string& mark) {
  std::vector<Leftover> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc", ignored}) {
    const pid_t pid = static_cast<pid_t>(std::atol(entry.path().filename().c_str()));
    if (pid <= 1 || pid == ::getpid()) continue;
    const ProcessStat stat = read_stat(entry.path());
    if (stat.state == 'Z' || stat.state == 'X') continue;
    if (stat.group == group || has_mark(entry.path(), mark)) found.push_back({pid, stat.name, stat.group == group});
  }
  return found;
}

// Kills them, again until none is found (a forking process may be ahead by one); returns those of the first look.
std::vector<Leftover> kill_marked(pid_t group, const std::string& mark) {
  const std::vector<Leftover> first = find_leftovers(group, mark);
  std::vector<Leftover> now = first;
  for (int attempt = 0; !now.empty() && attempt < 50; ++attempt) {
    for (const Leftover& leftover : now) ::kill(leftover.pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
    now = find_leftovers(group, mark);
  }
  return first;
}

// Passes what a child writes to its result pipe to `take`. Returns whether it closed the pipe in time.
bool pass_results(const Child& child, const ChildQuestion& question, const std::function<void(std::string_view)>& take) {
  const double deadline_s = monotonic_s() + question.limit_s;
  std::string block(1 << 16, '\0');
  for (double left_s = question.limit_s; left_s > 0; left_s = deadline_s - monotonic_s()) {
    if (base::interrupted()) throw Error{Exit::interrupted, question.interrupted};
    pollfd ready{child.result_fd(), POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(std::min(left_s, 0.1) * 1e3) + 1) <= 0) continue;
    const ssize_t got = ::read(child.result_fd(), block.data(), block.size());
    if (got > 0) take({block.data(), static_cast<std::size_t>(got)});
    else if (got == 0 || (errno != EAGAIN && errno != EINTR)) return true;
  }
  return false;
}

}  // namespace

bool is_stopped(pid_t process) {
  const char state = read_stat("/proc/" + std::to_string(process)).state;
  return state == 'T' || state == 't';
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string{"SIG"} + name : "signal " + std::to_string(signal);
}

std::string ExitState::text() const {
  if (!signalled) return "exit status " + std::to_string(code);
  return "killed by " + signal_name(code) + (core_dumped ? " (core dumped)" : "");
}

std::optional<fs::path> find_program(const std::string& name) {
  if (name.empty()) return std::nullopt;
  if (name.find('/') != std::string::npos) return fs::path{name};
  const char* path = std::getenv("PATH");
  for (const std::string& folder : split(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin", ':')) {
    const fs::path candidate = fs::path{folder.empty() ? "." : folder} / name;
    std::error_code ignored;
    if (fs::is_regular_file(candidate, ignored) && ::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return std::nullopt;
}

Child::Child(const Command& command) : mark_{new_mark()} {
  if (command.argv.front() == "/proc/self/exe") demand_proc();
  const Prepared prepared = prepare(command, mark_);
  int output_pipe[2] = {-1, -1};
  if (command.output_pipe && ::pipe2(output_pipe, O_CLOEXEC) != 0)
    cannot_start(command, std::string{"no pipe: "} + std::strerror(errno));
  Descriptor read_output{output_pipe[0]};
  const Descriptor input{input_file(command)}, output{command.output_pipe ? output_pipe[1] : output_file(command)};
  if (!input.open()) cannot_start(command, std::string{"no room for its input: "} + std::strerror(errno));
  if (!output.open()) cannot_start(command, "cannot write " + command.output.string() + ": " + std::strerror(errno));
  int results[2] = {-1, -1}, failure[2] = {-1, -1};
  if ((command.result_pipe && ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, results) != 0) ||
      ::pipe2(failure, O_CLOEXEC) != 0) {
    const Descriptor close_read{results[0]}, close_write{results[1]};
    cannot_start(command, std::string{"no pipe: "} + std::strerror(errno));
  }
  Descriptor read_results{results[0]};
  const Descriptor read_failure{failure[0]};
  {
    const Descriptor write_results{results[1]}, write_failure{failure[1]};
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) become(prepared, command, {input.get(), output.get(), write_results.get(), write_failure.get()}, parent);
    if (pid_ < 0) cannot_start(command, std::strerror(errno));
  }
  ::setpgid(pid_, pid_);  // whoever comes first, so that kill_group() works from here on
  int error = 0;
  ssize_t got = 0;
  while ((got = ::read(read_failure.get(), &error, sizeof error)) < 0 && errno == EINTR) {
  }
  if (got == static_cast<ssize_t>(sizeof error)) {
    wait();
    cannot_start(command, std::strerror(error));
  }
  // Only the parent's ends: the child writes to the others as to any pipe.
  for (const auto& [pipe, fd] : {std::pair{&read_results, &result_fd_}, std::pair{&read_output, &output_fd_}}) {
    if (!pipe->open()) continue;
    ::fcntl(pipe->get(), F_SETFL, O_NONBLOCK);
    *fd = pipe->release();
  }
}

Child::~Child() {
  if (!cleaned_up_ || (pid_ > 0 && !state_)) terminate(0);
  close_result_fd();
  close_output_fd();
}

void Child::close_result_fd() {
  if (result_fd_ >= 0) ::close(std::exchange(result_fd_, -1));
}

void Child::close_output_fd() {
  if (output_fd_ >= 0) ::close(std::exchange(output_fd_, -1));
}

void Child::answer(std::string_view text) const { ::send(result_fd_, text.data(), text.size(), MSG_NOSIGNAL); }

bool Child::kill_group(int signal) const { return pid_ > 0 && ::kill(-pid_, signal) == 0; }

std::optional<ExitState> Child::try_wait() {
  if (state_ || pid_ < 0) return state_;
  int status = 0;
  rusage usage{};
  const pid_t ended = ::wait4(pid_, &status, WNOHANG, &usage);
  if (ended == pid_) state_ = exit_state(status, usage);
  if (ended < 0 && errno == ECHILD) state_ = ExitState{.code = 255};  // somebody else reaped it
  return state_;
}

std::optional<ExitState> Child::wait(double timeout_s) {
  const double deadline = monotonic_s() + timeout_s;
  double pause_s = 0.0005;
  while (!try_wait()) {
    const double left = deadline - monotonic_s();
    if (left <= 0) return std::nullopt;
    sleep_s(std::min(pause_s, left));
    pause_s = std::min(pause_s * 1.5, 0.02);
  }
  return state_;
}

ExitState Child::wait() {
  for (;;)
    if (const auto state = wait(3600)) return *state;
}

std::vector<Leftover> Child::kill_leftovers() {
  cleaned_up_ = true;
  return kill_marked(pid_, mark_);
}

void Child::abandon() {
  pid_ = -1;
  cleaned_up_ = true;
}

ExitState Child::terminate(double grace_s) {
  if (!try_wait() && grace_s > 0) {
    kill_group(SIGTERM);
    wait(grace_s);
  }
  kill_group(SIGKILL);  // also what outlived the leader
  kill_leftovers();
  return wait();
}

std::string ChildOutcome::end_text() const { return end ? end->text() : "it hangs"; }

ChildOutcome ask(const ChildQuestion& question, const std::function<void(std::string_view)>& take) {
  Child child{{.argv = {question.executable, question.command, std::to_string(Child::result_fd_in_child)},
               .environment = question.environment,
               .input = question.input,
               .result_pipe = true}};
  if (pass_results(child, question, take)) return {.end = child.wait(5)};
  child.terminate(0.5);
  return {.in_time = false};
}

}  // namespace aisp::base
