// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <string>
#include <string_view>
#include <utility>

namespace aisp::run {

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_{number} {}
  Descriptor(Descriptor&& other) noexcept : number_{std::exchange(other.number_, -1)} {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { close(); }
  int get() const { return number_; }
  bool open() const { return number_ >= 0; }
  void close();

 private:
  int number_;
};

struct Child {
  pid_t pid = -1;
  Descriptor output;   // its stdout and stderr, non-blocking
  Descriptor results;  // its result pipe, non-blocking
  std::string mark;    // "NAME=value" in its environment, inherited by what it starts
};

// Starts `executable __child 3` in its own process group with `request` on its stdin. Throws std::system_error.
Child spawn_child(const std::string& executable, std::string_view request);

}  // namespace aisp::run
