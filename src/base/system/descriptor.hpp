// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <unistd.h>

#include <utility>

namespace aisp::base {

// A file descriptor that is closed with it.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_{number} {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : number_{other.release()} {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  int get() const { return number_; }
  bool open() const { return number_ >= 0; }
  int release() { return std::exchange(number_, -1); }
  // Returns what close() of the system returns; 0 if nothing is open.
  int close() {
    const int number = release();
    return number >= 0 ? ::close(number) : 0;
  }
  void reset(int number = -1) {
    close();
    number_ = number;
  }

 private:
  int number_ = -1;
};

}  // namespace aisp::base
