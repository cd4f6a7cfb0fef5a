// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace aisp::measure {

// Measures the CPU time of child processes outside executions; inside one it is part of the execution's time. Children that are
// never waited for, and orphaned grandchildren, are counted as long as they live.
class ChildWatch {
 public:
  void begin();  // marks the begin of an execution
  void end();    // marks its end; if there are children, it sleeps for 0.2 ms first, so that finished ones are asleep
  // Ignores their work so far: a workload may prepare itself by processes.
  void forget();
  void start_over();                                 // forget(), and resets the sum to 0
  double outside_ms() const { return outside_ms_; }  // of all children, since start_over()

 private:
  double known_ms_ = 0, outside_ms_ = 0;
};

}  // namespace aisp::measure
