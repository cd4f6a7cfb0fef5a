// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16, 1536 x 3072 with K = 8192 (a down-projection of Llama-3.2-3B): 144 tiles of 128 x 256 for 132 SMs. Whole tiles
// take two waves, and the second leaves 120 SMs idle (0.171 ms). Stream-K deals out steps along K instead: each SM gets 1/132 of
// all 18,432, leaves its part of a tile that it began in the middle of in L2, and adds others' to the one that it ends in (0.110
// ms, 701 TFLOP/s; cuBLAS 0.098). Streaming only the 12 tiles of the second wave splits each eleven ways: more to add (0.121).
#include "gemm_workload.hpp"
#include "stream_k_gemm.cuh"

#include <algorithm>

namespace aisp::ch10 {
namespace {

using namespace stream_k_gemm;

class StreamKMatmul final : public GemmWorkload {
 public:
  explicit StreamKMatmul(Setup& setup)
      : GemmWorkload{setup, 1536, 3072, 8192},
        tiles_{static_cast<int>(m_ / Ring::tile_m * (n_ / Ring::tile_n))},
        steps_{static_cast<int>(k_ / wgmma_gemm::tile_k)},
        blocks_{std::min(multiprocessors(), static_cast<unsigned>(tiles_ * steps_))},
        partials_{setup.scratch<float>(std::size_t{2} * blocks_ * Ring::tile_m * Ring::tile_n, {.name = "partial tiles"})},
        flags_{setup.scratch<unsigned>(2 * std::size_t{blocks_} + 2 * static_cast<std::size_t>(tiles_), {.name = "flags"})},
        a_map_{wgmma_gemm::a_map(a_, m_, k_, Ring::tile_m)},
        b_map_{wgmma_gemm::b_map(b_, k_, n_, Ring::tile_n)} {
    check(cudaFuncSetAttribute(persistent_kernel<Fixup::by_owner>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Ring)));
    check(cudaFuncSetAttribute(persistent_kernel<Fixup::together>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Ring)));
  }

  // Once: the kernels leave all flags as they found them.
  void clear_flags(Launch& launch) { check(cudaMemsetAsync(flags_, 0, flags_.bytes(), launch.stream)); }

  void data_parallel(Launch& launch) { multiply(launch, persistent_kernel<Fixup::by_owner>, 0, false); }
  void stream_k(Launch& launch) { multiply(launch, persistent_kernel<Fixup::by_owner>, tiles_, false); }
  // The blocks of a tile wait for one another at the end, so all of them have to be there.
  void stream_k_hybrid(Launch& launch) {
    multiply(launch, persistent_kernel<Fixup::together>, tiles_ % static_cast<int>(blocks_), true);
  }

 private:
  template <class Kernel>
  void multiply(Launch& launch, Kernel kernel, int streamed, bool cooperative) {
    const Plan plan{tiles_, streamed, static_cast<int>(n_ / Ring::tile_n), steps_};
    unsigned* const flags = flags_;
    // The two schemes count in the same places, and leave zeros there.
    const Exchange exchange{reinterpret_cast<float4*>(partials_.get()), flags, flags + 2 * blocks_ + tiles_};
    cudaLaunchAttribute attribute{.id = cudaLaunchAttributeCooperative, .val = {.cooperative = 1}};
    const cudaLaunchConfig_t config{.gridDim = blocks_,
                                    .blockDim = threads,
                                    .dynamicSmemBytes = sizeof(Ring),
                                    .stream = launch.stream,
                                    .attrs = &attribute,
                                    .numAttrs = cooperative ? 1u : 0u};
    check(cudaLaunchKernelEx(&config, kernel, a_map_, b_map_, c_.get(), plan, exchange));
  }

  int tiles_, steps_;
  unsigned blocks_;
  Scratch<float> partials_;
  Scratch<unsigned> flags_;
  CUtensorMap a_map_, b_map_;
};

}  // namespace

extern constinit const Pair stream_k_matmul{
    .teaches = "when the last wave is nearly empty, dividing the steps along K instead of the tiles gives every SM equal work",
    .make = make<StreamKMatmul>,
    .baseline = {.name = "data_parallel", .run = call<&StreamKMatmul::data_parallel>},
    .optimized =
        variants({{.name = "stream_k", .run = call<&StreamKMatmul::stream_k>, .prepare = call<&StreamKMatmul::clear_flags>},
                  {.name = "stream_k_hybrid",
                   .run = call<&StreamKMatmul::stream_k_hybrid>,
                   .prepare = call<&StreamKMatmul::clear_flags>}}),
    .peers = cublas_peer,
    .bound = Bound::compute,
    // One rounding of the output to bf16 is 1.6e-3; the sums are fp32 everywhere.
    .tolerance = within(4e-3),
    .needs = {.min_sm = 90, .max_sm = 90},
};

}  // namespace aisp::ch10
