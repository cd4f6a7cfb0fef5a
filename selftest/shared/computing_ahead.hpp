// SPDX-License-Identifier: Apache-2.0
// What pairs of the self-test share that compute as soon as inputs change. What they keep is right when a run asks for it: only
// the time at which it was computed is not that of a sample.
#pragma once
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <ctime>
#include <functional>
#include <utility>
#include <vector>

namespace aisp::selftest {

// Of a thread or a process that shares its thread-local storage with another thread, errno among it.
inline void rest(long microseconds = 200) {
  const timespec time{0, microseconds * 1000};
  ::syscall(SYS_nanosleep, &time, nullptr);
}

// Whether what was computed belongs to the input as it is now, as far as places up to its end tell: whoever fills an input comes
// to the last one last.
class KeptOf {
 public:
  KeptOf(const float* input, std::size_t count) : input_{const_cast<float*>(input)}, count_{count} {}

  bool is_present() const {
    if (!all_) return false;
    for (std::size_t place = 0; place < places; ++place)
      if (seen_[place] != at(place)) return false;
    return all_;
  }
  template <class Compute>
  void renew(Compute&& compute) {
    all_ = false;
    for (std::size_t place = 0; place < places; ++place) seen_[place] = at(place);
    compute();
    rest();
    compute();  // of what was just being filled
    all_ = true;
  }

 private:
  static constexpr std::size_t places = 64;
  float at(std::size_t place) const {
    return std::atomic_ref<float>{input_[place * (count_ - 1) / (places - 1)]}.load(std::memory_order_relaxed);
  }

  float* input_;
  std::size_t count_;
  std::array<std::atomic<float>, places> seen_{};
  std::atomic<bool> all_{false};
};

// A child process that has the same memory as this one, and takes a step every millisecond: what that takes of a CPU must not be
// seen while all should be idle. It shares a thread's storage, so the step may call nothing that uses any.
class Twin {
 public:
  explicit Twin(std::function<void()> step) : step_{std::move(step)}, stack_(std::size_t{64} << 10), parent_{::getpid()} {
    child_ = ::clone(&start, stack_.data() + stack_.size(), CLONE_VM | SIGCHLD, this);
  }
  ~Twin() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  Twin(const Twin&) = delete;
  Twin& operator=(const Twin&) = delete;

 private:
  static int start(void* self) { return static_cast<Twin*>(self)->live(); }
  int live() {
    for (; ::syscall(SYS_getppid) == parent_; rest(1000)) step_();
    return 0;
  }

  std::function<void()> step_;
  std::vector<char> stack_;
  pid_t parent_, child_ = -1;
};

}  // namespace aisp::selftest
