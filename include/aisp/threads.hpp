// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>

namespace aisp {

// Worker threads that live as long as the workload. Between calls they spin briefly, then sleep, so a call costs microseconds.
class ThreadTeam {
 public:
  virtual ~ThreadTeam() = default;
  virtual int size() const = 0;
  // Runs work(worker) for worker = 0 .. size() - 1, worker 0 on the calling thread, and returns when all are done. The first
  // exception is thrown again here.
  virtual void run(const std::function<void(int worker)>& work) = 0;
};

}  // namespace aisp
