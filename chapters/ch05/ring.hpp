// SPDX-License-Identifier: Apache-2.0
// The least of io_uring that queued reads need, on the bare system calls: two rings shared with the kernel, one of requests and
// one of completions, and buffers that the kernel keeps mapped.
#pragma once
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <aisp/check.hpp>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

namespace aisp::ch05 {

// Memory that a descriptor's driver maps for us.
class SharedPages {
 public:
  SharedPages(int descriptor, std::size_t bytes, off_t what) : bytes_{bytes} {
    memory_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, what);
    if (memory_ == MAP_FAILED) throw std::system_error{errno, std::generic_category(), "cannot map the rings of io_uring"};
  }
  ~SharedPages() { ::munmap(memory_, bytes_); }
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;

  template <class T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(memory_) + offset);
  }

 private:
  void* memory_;
  std::size_t bytes_;
};

// Closes what io_uring_setup returned, also where a later step of making the ring fails.
class RingDescriptor {
 public:
  RingDescriptor(unsigned depth, io_uring_params& parameters)
      : value_{static_cast<int>(::syscall(SYS_io_uring_setup, depth, &parameters))} {
    if (value_ < 0)
      throw Unsupported{std::string{"io_uring is refused by the kernel or the sandbox ("} + std::strerror(errno) + ")"};
  }
  ~RingDescriptor() { ::close(value_); }
  RingDescriptor(const RingDescriptor&) = delete;
  RingDescriptor& operator=(const RingDescriptor&) = delete;
  int value() const { return value_; }

 private:
  int value_;
};

class Ring {
 public:
  // `buffers`: `depth` pieces of `buffer_bytes`. Registered, they are pinned once instead of at every read.
  Ring(unsigned depth, std::byte* buffers, std::size_t buffer_bytes)
      : descriptor_{depth, parameters_},
        requests_{descriptor_.value(), parameters_.sq_off.array + parameters_.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING},
        completions_{descriptor_.value(), parameters_.cq_off.cqes + parameters_.cq_entries * sizeof(io_uring_cqe),
                     IORING_OFF_CQ_RING},
        entries_{descriptor_.value(), parameters_.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES},
        buffers_{buffers},
        buffer_bytes_{buffer_bytes} {
    const iovec all{buffers, depth * buffer_bytes};
    if (::syscall(SYS_io_uring_register, descriptor_.value(), IORING_REGISTER_BUFFERS, &all, 1) != 0)
      throw Unsupported{std::string{"io_uring cannot register buffers (locked-memory limit?): "} + std::strerror(errno)};
    for (unsigned i = 0; i < parameters_.sq_entries; ++i) requests_.at<unsigned>(parameters_.sq_off.array)[i] = i;
  }

  // Reads a whole buffer from `offset` of `file` into buffer `slot`; `tag` comes back with the completion. At most `depth` reads
  // may be between push_read and the end of take.
  void push_read(int file, std::uint64_t offset, unsigned slot, std::uint32_t tag) {
    io_uring_sqe& entry = entries_.at<io_uring_sqe>(0)[tail_ & (parameters_.sq_entries - 1)];
    entry = {};
    entry.opcode = IORING_OP_READ_FIXED;
    entry.fd = file;
    entry.off = offset;
    entry.addr = reinterpret_cast<std::uint64_t>(buffers_ + slot * buffer_bytes_);
    entry.len = static_cast<std::uint32_t>(buffer_bytes_);
    entry.user_data = std::uint64_t{tag} << 32 | slot;
    ++tail_;
  }

  // Hands all pushed reads over and waits until at least `completions` are there: one system call for both.
  void submit_and_wait(unsigned completions) {
    // Release: the kernel must see the entries before the new tail.
    std::atomic_ref{*requests_.at<unsigned>(parameters_.sq_off.tail)}.store(tail_, std::memory_order_release);
    const long taken =
        ::syscall(SYS_io_uring_enter, descriptor_.value(), tail_ - submitted_, completions, IORING_ENTER_GETEVENTS, nullptr, 0);
    if (taken >= 0) submitted_ += static_cast<unsigned>(taken);
    else if (errno != EINTR) throw std::system_error{errno, std::generic_category(), "io_uring_enter"};
  }

  // Calls done(slot, tag, result) for every completion that is there; `result` is the number of bytes or a negative errno.
  template <class Done>
  void take(Done&& done) {
    std::atomic_ref head{*completions_.at<unsigned>(parameters_.cq_off.head)};
    const unsigned end = std::atomic_ref{*completions_.at<unsigned>(parameters_.cq_off.tail)}.load(std::memory_order_acquire);
    for (unsigned at = head.load(std::memory_order_relaxed); at != end; ++at) {
      const io_uring_cqe& entry = completions_.at<io_uring_cqe>(parameters_.cq_off.cqes)[at & (parameters_.cq_entries - 1)];
      const auto slot = static_cast<unsigned>(entry.user_data);
      const auto tag = static_cast<std::uint32_t>(entry.user_data >> 32);
      const int result = entry.res;
      head.store(at + 1, std::memory_order_release);
      done(slot, tag, result);
    }
  }

  const std::byte* buffer(unsigned slot) const { return buffers_ + slot * buffer_bytes_; }

 private:
  io_uring_params parameters_{};
  RingDescriptor descriptor_;
  SharedPages requests_, completions_, entries_;
  std::byte* buffers_;
  std::size_t buffer_bytes_;
  unsigned tail_ = 0, submitted_ = 0;
};

}  // namespace aisp::ch05
