// SPDX-License-Identifier: Apache-2.0
// Cluster launch control (sm_100): a running block asks the hardware for one that has not started yet, which then never starts:
// the asker does its work. Grids have a block for every tile, and yet blocks are persistent; who is done first takes the next.
// Compiled, but not run yet.
#pragma once
#include <aisp/device/arch.cuh>

namespace aisp::device {

// Opaque; written by the asynchronous proxy.
struct alignas(16) CancelledLaunch {
  std::uint64_t words[2];
};

// clusterlaunchcontrol.try_cancel: the answer arrives in shared memory as 16 bytes that the barrier counts. Asking again after
// the answer that no block is left is an error. A thread that has read an answer passes fence_proxy_async_shared before it
// releases the memory for the next one.
__device__ __forceinline__ void ask_for_launch(CancelledLaunch* answer, std::uint64_t* barrier) {
#if AISP_SM >= 100
  asm volatile("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%0], [%1];" ::"r"(
                   shared_address(answer)),
               "r"(shared_address(barrier))
               : "memory");
#else
  unsupported_architecture();
#endif
}

// clusterlaunchcontrol.query_cancel.is_canceled and .get_first_ctaid: blockIdx.x of the block that will not start; -1 when there
// was none. Its other coordinates are 0 in grids of one dimension.
__device__ __forceinline__ int block_of(const CancelledLaunch& answer) {
  int block = -1;
#if AISP_SM >= 100
  asm volatile(
      "{\n"
      ".reg .pred cancelled;\n"
      ".reg .b128 answer;\n"
      "mov.b128 answer, {%1, %2};\n"
      "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 cancelled, answer;\n"
      "@cancelled clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %0, answer;\n"
      "}\n"
      : "+r"(block)
      : "l"(answer.words[0]), "l"(answer.words[1])
      : "memory");
#else
  unsupported_architecture();
#endif
  return block;
}

}  // namespace aisp::device
