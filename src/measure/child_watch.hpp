// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace aisp::measure {

// How much CPU time child processes of this process use outside of executions. What they do inside of one is part of its time.
// Children that nobody waits for, and those of children that ended, are known as long as they live.
class ChildWatch {
 public:
  void begin();  // of an execution
  void end();    // where there are children, it sleeps for 0.2 ms first, so that those that did their part are asleep
  // What they have done by now was neither inside nor outside: a workload may prepare itself by processes.
  void forget();
  void start_over();                                 // forgets, and the sum is 0
  double outside_ms() const { return outside_ms_; }  // of all children, since start_over()

 private:
  double known_ms_ = 0, outside_ms_ = 0;
};

}  // namespace aisp::measure
