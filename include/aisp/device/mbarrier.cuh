// SPDX-License-Identifier: Apache-2.0
// mbarrier: a barrier in shared memory that counts arrivals of threads and bytes of asynchronous copies. A phase completes when
// the expected arrivals and all expected bytes have come; then the next begins. Waiting names the phase by its parity: 0 for the
// first phase, 1 for the second, 0 for the third. A wait on a new barrier with parity 1 returns at once ("the phase before the
// first has completed").
#pragma once
#include <aisp/device/arch.cuh>

namespace aisp::device {

// mbarrier.init: by one thread; then fence_barrier_init and a __syncthreads (or cluster barrier) before anyone uses it.
__device__ __forceinline__ void barrier_init(std::uint64_t* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// mbarrier.inval: before the memory is used for something else.
__device__ __forceinline__ void barrier_invalidate(std::uint64_t* barrier) {
  asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// fence.mbarrier_init.release.cluster: makes initialised barriers known to TMA and to the other blocks of the cluster.
__device__ __forceinline__ void fence_barrier_init() {
#if AISP_SM >= 90
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
  unsupported_architecture();
#endif
}

// mbarrier.arrive: one arrival; releases this thread's earlier writes to the threads of the block that wait.
__device__ __forceinline__ void barrier_arrive(std::uint64_t* barrier) {
#if AISP_SM >= 90
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#else
  [[maybe_unused]] std::uint64_t state;
  asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(shared_address(barrier)) : "memory");
#endif
}

// mbarrier.arrive.expect_tx: one arrival that adds `bytes` to the present phase's expected bytes. Call it before the copies are
// started.
__device__ __forceinline__ void barrier_arrive_expect(std::uint64_t* barrier, unsigned bytes) {
#if AISP_SM >= 90
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
#else
  unsupported_architecture();
#endif
}

// mbarrier.expect_tx: the bytes alone, without an arrival.
__device__ __forceinline__ void barrier_expect(std::uint64_t* barrier, unsigned bytes) {
#if AISP_SM >= 90
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
#else
  unsupported_architecture();
#endif
}

// mbarrier.try_wait.parity: true when the phase of that parity has completed; may suspend the thread for a while first. True
// acquires the writes that the arriving threads released.
__device__ __forceinline__ bool barrier_try_wait(std::uint64_t* barrier, unsigned parity) {
#if AISP_SM >= 90
  unsigned completed;
  asm volatile(
      "{\n"
      ".reg .pred completed;\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 completed, [%1], %2;\n"
      "selp.u32 %0, 1, 0, completed;\n"
      "}\n"
      : "=r"(completed)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return completed != 0;
#elif AISP_SM >= 80
  unsigned completed;
  asm volatile(
      "{\n"
      ".reg .pred completed;\n"
      "mbarrier.test_wait.parity.shared.b64 completed, [%1], %2;\n"
      "selp.u32 %0, 1, 0, completed;\n"
      "}\n"
      : "=r"(completed)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return completed != 0;
#else
  unsupported_architecture();
  return false;
#endif
}

__device__ __forceinline__ void barrier_wait(std::uint64_t* barrier, unsigned parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}

// mapa + mbarrier.arrive.release.cluster: one arrival at the barrier that lies at the same place in block `rank` of the cluster.
// That block waits with barrier_wait_cluster, and must still be running: end such kernels with a cluster barrier.
__device__ __forceinline__ void barrier_arrive_remote(std::uint64_t* barrier, unsigned rank) {
#if AISP_SM >= 90
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
#else
  unsupported_architecture();
#endif
}

// The same without the release: for arrivals that publish nothing, such as "I have read this stage". A release to the cluster
// waits until all earlier writes of the thread are done. That block may wait with barrier_wait.
__device__ __forceinline__ void barrier_arrive_remote_relaxed(std::uint64_t* barrier, unsigned rank) {
#if AISP_SM >= 90
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
#else
  unsupported_architecture();
#endif
}

// The same with `bytes` that the remote barrier's present phase is to wait for.
__device__ __forceinline__ void barrier_arrive_expect_remote(std::uint64_t* barrier, unsigned rank, unsigned bytes) {
#if AISP_SM >= 90
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [remote], %2;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(rank), "r"(bytes)
      : "memory");
#else
  unsupported_architecture();
#endif
}

// mbarrier.try_wait.parity.acquire.cluster: acquires what threads of other blocks released. The barrier is the calling block's
// own.
__device__ __forceinline__ void barrier_wait_cluster(std::uint64_t* barrier, unsigned parity) {
#if AISP_SM >= 90
  unsigned completed = 0;
  while (completed == 0) {
    asm volatile(
        "{\n"
        ".reg .pred completed;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 completed, [%1], %2;\n"
        "selp.u32 %0, 1, 0, completed;\n"
        "}\n"
        : "=r"(completed)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
#else
  unsupported_architecture();
#endif
}

}  // namespace aisp::device
