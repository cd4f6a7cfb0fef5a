// SPDX-License-Identifier: Apache-2.0
#include "run/spawn.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <vector>

extern char** environ;

namespace aisp::run {
namespace {

constexpr int result_descriptor = 3;

[[noreturn]] void fail(int error, const char* what) { throw std::system_error{error, std::generic_category(), what}; }

void require(int error, const char* what) {
  if (error != 0) fail(error, what);
}

std::pair<Descriptor, Descriptor> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail(errno, "pipe");
  std::pair<Descriptor, Descriptor> pipe{Descriptor{ends[0]}, Descriptor{ends[1]}};
  // Only this end may be non-blocking: the child writes to the other as to any pipe.
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return pipe;
}

// A file in memory rather than a pipe, so that a child that never reads cannot block the parent.
Descriptor request_file(std::string_view request) {
  Descriptor file{::memfd_create("request", MFD_CLOEXEC)};
  if (!file.open()) fail(errno, "memfd_create");
  while (!request.empty()) {
    const ssize_t written = ::write(file.get(), request.data(), request.size());
    if (written < 0) fail(errno, "write the request");
    request.remove_prefix(static_cast<std::size_t>(written));
  }
  ::lseek(file.get(), 0, SEEK_SET);
  return file;
}

struct Actions {
  posix_spawn_file_actions_t value;
  Actions() { require(::posix_spawn_file_actions_init(&value), "posix_spawn_file_actions_init"); }
  ~Actions() { ::posix_spawn_file_actions_destroy(&value); }
  Actions(const Actions&) = delete;
  Actions& operator=(const Actions&) = delete;
  void duplicate(const Descriptor& from, int to) { require(::posix_spawn_file_actions_adddup2(&value, from.get(), to), "dup2"); }
};

struct Attributes {
  posix_spawnattr_t value;
  Attributes() {
    require(::posix_spawnattr_init(&value), "posix_spawnattr_init");
    sigset_t none, all;
    ::sigemptyset(&none);
    ::sigfillset(&all);
    ::posix_spawnattr_setpgroup(&value, 0);
    ::posix_spawnattr_setsigmask(&value, &none);
    ::posix_spawnattr_setsigdefault(&value, &all);
    ::posix_spawnattr_setflags(&value, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~Attributes() { ::posix_spawnattr_destroy(&value); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
};

std::string next_mark() {
  static std::atomic<unsigned> counter{0};
  return fmt::format("AISP_CHILD_OF={}.{}", ::getpid(), ++counter);
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  close();
  number_ = std::exchange(other.number_, -1);
  return *this;
}

void Descriptor::close() {
  if (number_ >= 0) ::close(std::exchange(number_, -1));
}

Child spawn_child(const std::string& executable, std::string_view request) {
  Child child;
  child.mark = next_mark();
  const Descriptor input = request_file(request);
  auto [output_read, output_write] = make_pipe();
  auto [results_read, results_write] = make_pipe();

  // dup2 onto low numbers in this order would overwrite a source that is itself low, so sources are moved out of the way first.
  const Descriptor sources[] = {Descriptor{::fcntl(input.get(), F_DUPFD_CLOEXEC, 10)},
                                Descriptor{::fcntl(output_write.get(), F_DUPFD_CLOEXEC, 10)},
                                Descriptor{::fcntl(results_write.get(), F_DUPFD_CLOEXEC, 10)}};
  Actions actions;
  actions.duplicate(sources[0], 0);
  actions.duplicate(sources[1], 1);
  actions.duplicate(sources[1], 2);
  actions.duplicate(sources[2], result_descriptor);
  const Attributes attributes;

  std::vector<char*> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) environment.push_back(*variable);
  environment.push_back(child.mark.data());
  environment.push_back(nullptr);
  std::string arguments[] = {"aisp", "__child", std::to_string(result_descriptor)};
  char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
  require(::posix_spawn(&child.pid, executable.c_str(), &actions.value, &attributes.value, argv, environment.data()),
          "start the child");

  child.output = std::move(output_read);
  child.results = std::move(results_read);
  return child;
}

}  // namespace aisp::run
