// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace aisp {

// Worker threads that live as long as the workload. Between calls they spin briefly, then sleep, so a call costs microseconds.
class ThreadTeam {
 public:
  virtual ~ThreadTeam() = default;
  virtual int size() const = 0;
  // Runs work(worker) for worker = 0 .. size() - 1, worker 0 on the calling thread, and returns when all are done. The first
  // exception is thrown again here.
  template <class Work>
  void run(const Work& work) {
    run_all(&call<Work>, &work);
  }

 private:
  template <class Work>
  static void call(const void* work, int worker) {
    (*static_cast<const Work*>(work))(worker);
  }
  virtual void run_all(void (*work)(const void* context, int worker), const void* context) = 0;
};

}  // namespace aisp
