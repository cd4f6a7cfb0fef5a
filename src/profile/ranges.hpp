// SPDX-License-Identifier: Apache-2.0
// NVTX ranges and marks in the domain "aisp". They cost nothing when no tool listens: NVTX looks for one at its first call only.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace aisp::profile {

void push_range(const char* name);
void pop_range();
void mark(const char* name);

// A range for as long as it lives.
class Scope {
 public:
  explicit Scope(const std::string& name) { push_range(name.c_str()); }
  ~Scope() { pop_range(); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

struct NamedRange {
  std::string name;
  std::uint64_t start_ns = 0;
  std::uint64_t end_ns = 0;  // equal to the start: a mark
  int depth = 0;             // ranges around it
};

// Our own record of ranges, for traces: CUPTI sees NVTX only when it was injected before the process began.
class RangeLog {
 public:
  explicit RangeLog(std::function<std::uint64_t()> now_ns) : now_ns_{std::move(now_ns)} {}
  void push(const char* name);
  void pop();
  void mark(const char* name);
  // In the order of their start; what is still open ends now.
  std::vector<NamedRange> take();

 private:
  std::function<std::uint64_t()> now_ns_;
  std::vector<NamedRange> ranges_;
  std::vector<std::size_t> open_;
};

}  // namespace aisp::profile
