// SPDX-License-Identifier: Apache-2.0
// A loader process, and the two ways its batches come to the process that started it: a pipe, and a ring in memory that both map.
#pragma once
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <aisp/host.hpp>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>

namespace aisp::ch03::loading {

constexpr std::size_t most_batches = 32, batch_words = (std::size_t{1} << 20) / sizeof(std::uint32_t);
constexpr std::size_t batch_bytes = batch_words * sizeof(std::uint32_t);
constexpr std::uint32_t slots = 4;  // one being filled, one being read, and slack for both sides

constexpr std::uint32_t word_step = 0x9E3779B9;
constexpr std::uint32_t word_of(std::uint32_t state) { return state ^ state >> 15; }

// Stands for decoding: arithmetic that keeps up with memory, so that the hand-over is what the time goes to.
inline void make_batch(std::uint32_t seed, std::uint32_t* words) {
  for (std::size_t i = 0; i < batch_words; ++i) words[i] = word_of(seed += word_step);
}

// A number that one process writes and the other waits for. It has cache lines of its own; release and acquire make everything
// that was written before it visible with it. (std::atomic::wait works within one process only, hence the bare futex.)
class alignas(128) Sequence {
 public:
  std::uint32_t now() const { return value_.load(std::memory_order_acquire); }
  void advance() {
    value_.store(value_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    ::syscall(SYS_futex, &value_, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }
  // Polls for longer than a batch takes, then sleeps. Nothing says that the two processes run on different CPUs, so polling
  // yields: otherwise it might keep the other one from what is waited for. False when nothing changed in a tenth of a second.
  bool differs_soon_from(std::uint32_t seen) const {
    for (int spin = 1; spin <= 4000; ++spin) {
      if (now() != seen) return true;
      spin % 32 == 0 ? yield_cpu() : pause_cpu();
    }
    const timespec tenth{0, 100'000'000};
    ::syscall(SYS_futex, &value_, FUTEX_WAIT, seen, &tenth, nullptr, 0);
    return now() != seen;
  }

 private:
  static void yield_cpu() { ::sched_yield(); }
  std::atomic<std::uint32_t> value_{0};
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "a lock would belong to one of the processes");

struct Ring {
  Sequence filled, emptied;  // batches so far; both numbers only grow, and wrap together
  alignas(4096) std::uint32_t slot[slots][batch_words];
};

enum class Way : std::uint32_t { pipe, ring };

// The trainer's order: a seed for each batch. Orders go over a socket in both variants; they are 136 bytes.
struct Order {
  Way way;
  std::uint32_t batches;
  std::array<std::uint32_t, most_batches> seeds;
};

class Descriptor {
 public:
  explicit Descriptor(int number) : number_{number} {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  void close() {
    if (number_ >= 0) ::close(std::exchange(number_, -1));
  }
  operator int() const { return number_; }

 private:
  int number_;
};

// The loader process's side. It is a copy of a process that may have had more threads, so it uses system calls and memory that
// was there before, nothing that takes a lock.
class Loader {
 public:
  Loader(Ring& ring, std::uint32_t* batch) : ring_{ring}, batch_{batch} {}

  [[noreturn]] void serve(pid_t trainer, int orders, int batches) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != trainer) ::_exit(0);  // it was gone before it could be watched
    for (const int signal : {SIGINT, SIGTERM, SIGPIPE}) ::signal(signal, SIG_DFL);
    ::dup2(orders, STDIN_FILENO);
    ::dup2(batches, STDOUT_FILENO);
    ::close_range(STDERR_FILENO, ~0u, 0);  // whoever waits for the end of the trainer's output must not wait for us
    Order order;
    while (::recv(STDIN_FILENO, &order, sizeof order, 0) == static_cast<ssize_t>(sizeof order))
      for (std::uint32_t i = 0; i < order.batches; ++i) order.way == Way::pipe ? send(order.seeds[i]) : publish(order.seeds[i]);
    ::_exit(0);
  }

 private:
  void send(std::uint32_t seed) {
    make_batch(seed, batch_);
    const auto* bytes = reinterpret_cast<const std::byte*>(batch_);
    for (std::size_t at = 0; at < batch_bytes;) {
      const ssize_t part = ::write(STDOUT_FILENO, bytes + at, batch_bytes - at);
      if (part < 0) ::_exit(1);
      at += static_cast<std::size_t>(part);
    }
  }
  void publish(std::uint32_t seed) {
    const std::uint32_t number = ring_.filled.now();
    while (number - ring_.emptied.now() == slots) ring_.emptied.differs_soon_from(number - slots);
    make_batch(seed, ring_.slot[number % slots]);
    ring_.filled.advance();
  }

  Ring& ring_;
  std::uint32_t* batch_;
};

class SharedRing {
 public:
  SharedRing() {
    const Descriptor file{::memfd_create("aisp-batches", MFD_CLOEXEC)};
    if (file < 0 || ::ftruncate(file, sizeof(Ring)) != 0) fail("cannot make shared memory");
    memory_ = ::mmap(nullptr, sizeof(Ring), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    if (memory_ == MAP_FAILED) fail("cannot map shared memory");
    new (memory_) Ring;
  }
  ~SharedRing() { ::munmap(memory_, sizeof(Ring)); }
  SharedRing(const SharedRing&) = delete;
  SharedRing& operator=(const SharedRing&) = delete;
  Ring* operator->() const { return static_cast<Ring*>(memory_); }
  Ring& operator*() const { return *static_cast<Ring*>(memory_); }

 private:
  void* memory_;
};

// The trainer's side: starts the loader and ends it.
class LoaderProcess {
 public:
  explicit LoaderProcess(std::uint32_t* batch) {
    const auto [ours, theirs] = connect();
    const auto [read_end, write_end] = open_pipe();
    orders_ = std::make_unique<Descriptor>(ours);
    batches_ = std::make_unique<Descriptor>(read_end);
    const Descriptor their_orders{theirs}, their_batches{write_end};  // closed here once the loader has them
    const pid_t trainer = ::getpid();
    pid_ = ::fork();
    if (pid_ < 0) fail("cannot start a loader process");
    if (pid_ == 0) Loader{*ring_, batch}.serve(trainer, theirs, write_end);
  }
  ~LoaderProcess() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);  // it has no state to lose, and may be in the middle of a batch that nobody will read
    ::waitpid(pid_, nullptr, 0);
  }
  LoaderProcess(const LoaderProcess&) = delete;
  LoaderProcess& operator=(const LoaderProcess&) = delete;

  void send(const Order& order) {
    if (::send(*orders_, &order, sizeof order, MSG_NOSIGNAL) < 0) fail("cannot reach the loader process");
  }
  void receive(std::uint32_t* batch) {
    auto* bytes = reinterpret_cast<std::byte*>(batch);
    for (std::size_t at = 0; at < batch_bytes;) {
      const ssize_t part = ::read(*batches_, bytes + at, batch_bytes - at);
      if (part == 0) throw std::runtime_error{"the loader process ended"};
      if (part < 0 && errno != EINTR) fail("cannot read the pipe");
      if (part > 0) at += static_cast<std::size_t>(part);
    }
  }
  template <class Use>
  void take(Use&& use) {
    const std::uint32_t number = ring_->emptied.now();
    while (!ring_->filled.differs_soon_from(number))
      if (has_ended()) throw std::runtime_error{"the loader process ended"};
    use(ring_->slot[number % slots]);
    ring_->emptied.advance();
  }

 private:
  static std::pair<int, int> connect() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) fail("cannot make a socket pair");
    return {ends[0], ends[1]};
  }
  static std::pair<int, int> open_pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) fail("cannot make a pipe");
    return {ends[0], ends[1]};
  }
  bool has_ended() {
    if (::waitpid(pid_, nullptr, WNOHANG) == 0) return false;
    pid_ = -1;
    return true;
  }

  SharedRing ring_;
  std::unique_ptr<Descriptor> orders_, batches_;
  pid_t pid_ = -1;
};

}  // namespace aisp::ch03::loading
