// SPDX-License-Identifier: Apache-2.0
// Their work, or a part of it, lies outside of the timed window.
#include "calls.hpp"
#include "doubling.cuh"

#include <aisp/graph.hpp>

#include <atomic>
#include <chrono>
#include <thread>

namespace aisp::ch97 {
namespace {

using namespace selftest;

class Outside final : public GpuDoubling {
 public:
  explicit Outside(Setup& setup)
      : GpuDoubling{setup},
        other_{setup.stream()},
        mark_{setup.event()},
        kept_{out_.bytes()},
        on_host_{setup.scratch<float>(count_, {.memory = Memory::pinned})} {}
  void on_the_default_stream(Launch&) {
    spin(20'000'000, nullptr);
    double_on(nullptr, count_);
  }
  void on_a_hidden_stream(Launch&) {
    spin(20'000'000, other_);
    double_on(other_, count_);
  }
  void for_long(Launch& launch) {
    spin(3'000'000, other_);
    doubled(launch);
  }
  // Too short for a host clock to see.
  void for_a_moment(Launch& launch) {
    spin(150'000, other_);
    doubled(launch);
  }
  // The last thousand elements follow when the stream has run dry.
  void a_little_behind(Launch& launch) {
    double_on(launch.stream, count_ - 1000);
    check(cudaEventRecord(mark_, launch.stream));
    check(cudaStreamWaitEvent(other_, mark_));
    spin(30'000, other_);
    double_on(other_, count_);
  }
  // What the next run will hand out if the input stays the same.
  void ahead_for_the_next(Launch& launch) {
    if (calls_++ == 0) doubled(launch);
    else kept_.give(out_, launch.stream);
    check(cudaEventRecord(mark_, launch.stream));
    check(cudaStreamWaitEvent(other_, mark_));
    double_kernel<8><<<blocks(), block_threads, 0, other_>>>(in_, kept_.get<float>(), count_);
  }
  // All of it is done when run() returns, and the timed stream has seen nothing.
  void before_the_start(Launch&) {
    settle();
    double_on(other_, count_);
    check(cudaStreamSynchronize(other_));
  }
  void on_the_default_stream_before(Launch&) {
    settle();
    double_on(nullptr, count_);
    check(cudaStreamSynchronize(nullptr));
  }
  // The other stream is joined, but was not forked: it begins when it likes.
  void without_a_fork(Launch& launch) {
    settle();
    double_on(other_, count_);
    check(cudaEventRecord(mark_, other_));
    check(cudaStreamWaitEvent(launch.stream, mark_));
  }
  // The stream only gets the results.
  void on_the_cpu(Launch& launch) {
    check(cudaMemcpyAsync(on_host_, in_, in_.bytes(), cudaMemcpyDeviceToHost, other_));
    check(cudaStreamSynchronize(other_));
    for (std::size_t i = 0; i < count_; ++i) on_host_.get()[i] *= 2;
    check(cudaMemcpyAsync(out_, on_host_, out_.bytes(), cudaMemcpyHostToDevice, launch.stream));
  }
  void in_a_callback(Launch& launch) {
    doubled(launch);
    check(cudaLaunchHostFunc(launch.stream, count_up, &done_by_the_cpu_));
  }
  void capture(Launch& launch) {
    graph_.capture(launch.stream, [&](cudaStream_t stream) {
      double_on(stream, count_);
      check(cudaLaunchHostFunc(stream, count_up, &done_by_the_cpu_));
    });
  }
  void in_a_graph(Launch& launch) { graph_.launch(launch.stream); }
  // A thread queues the work when run() has long returned.
  void by_a_thread(Launch&) {
    if (thread_.joinable()) thread_.join();
    thread_ = std::jthread{[this] {
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
      double_on(other_, count_);
    }};
  }

 private:
  static void count_up(void* work) { ++*static_cast<std::atomic<int>*>(work); }
  // Until whatever the harness had queued before is done.
  static void settle() { std::this_thread::sleep_for(std::chrono::milliseconds{2}); }

  cudaStream_t other_;
  cudaEvent_t mark_;
  OwnMemory kept_;
  Scratch<float> on_host_;  // pinned: a copy from pageable memory waits for the stream, and is timed from before run()
  Graph graph_;
  std::atomic<int> done_by_the_cpu_{0};
  int calls_ = 0;
  std::jthread thread_;
};

// A thread that keeps the GPU at work on the next results, sample or no sample.
class ComputesAhead final : public GpuDoubling {
 public:
  explicit ComputesAhead(Setup& setup)
      : GpuDoubling{setup}, own_{setup.stream()}, kept_{out_.bytes()}, thread_{[this](const std::stop_token& stop) {
          work(stop);
        }} {}
  void copy(Launch& launch) { kept_.give(out_, launch.stream); }

 private:
  void work(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      double_kernel<8><<<blocks(), block_threads, 0, own_>>>(in_, kept_.get<float>(), count_);
      cudaStreamSynchronize(own_);
    }
  }
  cudaStream_t own_;
  OwnMemory kept_;
  std::jthread thread_;
};

constexpr Expected too_early = fails("verify/gate", "measurement/gate", "audit/early_work");

}  // namespace

extern constinit const selftest::Case gpu_default_stream = pair_of<&Outside::on_the_default_stream>(
    {.does = "forgets the stream argument of its kernels", .must = fails("verify/finished")});
extern constinit const selftest::Case gpu_hidden_stream = pair_of<&Outside::on_a_hidden_stream>(
    {.does = "computes on a stream of its own and does not join it", .must = fails("verify/finished")});
extern constinit const selftest::Case gpu_late_work = pair_of<&Outside::for_long>(
    {.does = "goes on for 3 ms on another stream after the end of the sample", .must = fails("measurement/late_work")});
extern constinit const selftest::Case gpu_short_late_work =
    pair_of<&Outside::for_a_moment>({.does = "goes on for 0.1 ms on another stream, too short for a host clock to see",
                                     .must = fails("audit/hidden_work", "audit/late_work"),
                                     .needs_cupti = true});
extern constinit const selftest::Case gpu_a_little_behind = pair_of<&Outside::a_little_behind>(
    {.does = "writes its last thousand elements 0.03 ms after its stream has run dry",
     .must = fails("verify/finished", "verify/written", "audit/hidden_work", "audit/late_work")});
extern constinit const selftest::Case gpu_ahead_for_the_next = pair_of<&Outside::ahead_for_the_next>(
    {.does = "computes behind the end of a sample what the next one hands out",
     .must = fails("verify/reference", "measurement/timed_samples", "audit/late_work", "audit/hidden_work")});
extern constinit const selftest::Case gpu_before_the_start =
    pair_of<&Outside::before_the_start>({.does = "has done all on another stream before the sample starts", .must = too_early});
extern constinit const selftest::Case gpu_default_stream_before = pair_of<&Outside::on_the_default_stream_before>(
    {.does = "forgets the stream argument and waits for the default stream", .must = too_early});
extern constinit const selftest::Case gpu_without_a_fork = pair_of<&Outside::without_a_fork>(
    {.does = "joins its other stream, which did not wait for the sample to start", .must = too_early});
extern constinit const selftest::Case gpu_on_the_cpu =
    pair_of<&Outside::on_the_cpu>({.does = "computes on the CPU before the sample starts, and copies what comes out",
                                   .must = fails("audit/early_work", "audit/hidden_work", "measurement/early_work"),
                                   .needs_cupti = true});
extern constinit const selftest::Case gpu_host_callback = pair_of<&Outside::in_a_callback>(
    {.does = "has the CPU work in a callback that it does not declare", .must = fails("audit/hidden_work"), .needs_cupti = true});
extern constinit const selftest::Case gpu_graph_callback =
    pair_of<&Outside::in_a_graph>({.does = "has the CPU work in a node of a graph and does not declare it",
                                   .must = fails("audit/hidden_work"),
                                   .prepare = call<&Outside::capture>,
                                   .needs_cupti = true});
extern constinit const selftest::Case gpu_by_a_thread =
    pair_of<&Outside::by_a_thread>({.does = "has a thread queue the work after run() has returned",
                                    .must = fails("verify/gate", "verify/written", "verify/finished", "verify/second_run")});
extern constinit const selftest::Case gpu_computed_ahead = pair_of<&ComputesAhead::copy>(
    {.does = "has a thread keep the GPU at work on what the next run hands out",
     .must = fails("verify/reference", "measurement/timed_samples", "audit/early_work", "audit/hidden_work")});

}  // namespace aisp::ch97
