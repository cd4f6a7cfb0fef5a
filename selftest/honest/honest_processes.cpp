// SPDX-License-Identifier: Apache-2.0
// Honest pairs that have processes of their own.
#include "doubling.hpp"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <new>

namespace aisp::ch96 {
namespace {

using namespace selftest;

// Floats that this process and its children see alike.
class SharedFloats {
 public:
  explicit SharedFloats(std::size_t count) : bytes_{count * sizeof(float)} {
    void* const memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc{};
    data_ = static_cast<float*>(memory);
  }
  ~SharedFloats() { ::munmap(data_, bytes_); }
  SharedFloats(const SharedFloats&) = delete;
  SharedFloats& operator=(const SharedFloats&) = delete;
  float* get() const { return data_; }

 private:
  std::size_t bytes_;
  float* data_;
};

class MakesATable final : public Doubling {
 public:
  explicit MakesATable(Setup& setup) : Doubling{setup}, factors_{count_} {
    const pid_t child = ::fork();
    if (child == 0) {
      std::fill_n(factors_.get(), count_, 2.0f);
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
  }
  void from_the_table(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = factors_.get()[i] * in_.get()[i];
  }

 private:
  SharedFloats factors_;
};

// The child works while the run waits for it, and sleeps otherwise.
class HasAHelper final : public Doubling {
 public:
  explicit HasAHelper(Setup& setup) : Doubling{setup}, values_{count_} {
    if (::pipe(requests_.data()) != 0 || ::pipe(answers_.data()) != 0) throw std::bad_alloc{};
    const pid_t parent = ::getpid();
    helper_ = ::fork();
    if (helper_ == 0) serve(parent);
  }
  ~HasAHelper() override {
    ::kill(helper_, SIGKILL);
    ::waitpid(helper_, nullptr, 0);
    for (const int end : {requests_[0], requests_[1], answers_[0], answers_[1]}) ::close(end);
  }
  void with_it(Launch&) {
    std::copy_n(in_.get(), count_, values_.get());
    char byte = 1;
    if (::write(requests_[1], &byte, 1) != 1 || ::read(answers_[0], &byte, 1) != 1) throw std::bad_alloc{};
    std::copy_n(values_.get(), count_, out_.get());
  }

 private:
  [[noreturn]] void serve(pid_t parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (char byte = 0; ::getppid() == parent && ::read(requests_[0], &byte, 1) == 1;) {
      for (std::size_t i = 0; i < count_; ++i) values_.get()[i] *= 2;
      if (::write(answers_[1], &byte, 1) != 1) break;
    }
    ::_exit(0);
  }

  SharedFloats values_;
  std::array<int, 2> requests_{}, answers_{};
  pid_t helper_ = -1;
};

}  // namespace

extern constinit const selftest::Case honest_child =
    pair_of<&MakesATable::from_the_table>({.does = "has a child process make a table before anything is timed"});
extern constinit const selftest::Case honest_helper =
    pair_of<&HasAHelper::with_it>({.does = "has a child process compute while the run waits for it"});

}  // namespace aisp::ch96
