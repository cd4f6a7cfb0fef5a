// SPDX-License-Identifier: Apache-2.0
// They leave something behind that slows their baseline, whose code is innocent, or take over what another has computed.
#include "calls.hpp"
#include "chasing.cuh"

#include <random>

namespace aisp::ch97 {
namespace {

using namespace selftest;

class LeavesLittleCache final : public Chasing<1> {
 public:
  using Chasing::Chasing;
  // Nearly all of L1 becomes shared memory, whenever that kernel runs.
  void set(Launch&) { leave_little_cache(); }
};

// Takes what the baseline has kept, if that is of the same inputs.
__global__ void taking_kernel(const float* in, const float* kept, float* out, std::size_t count, bool may_take) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  if (may_take && kept[0] == 2 * in[0] && kept[count - 1] == 2 * in[count - 1]) {
    out[i] = kept[i];
    return;
  }
  const volatile float* from = in + i;
  volatile float* to = out + i;
  for (int pass = 0; pass < 32; ++pass) *to = 2 * *from;
}

class TakesOver final : public GpuDoubling {
 public:
  explicit TakesOver(Setup& setup) : GpuDoubling{setup}, kept_{out_.bytes()} {}
  void share(Launch& launch) {
    slow(launch);
    kept_.keep(out_, launch.stream);
  }
  // Every third of its times on these inputs is that of computing, so that quartiles overlap.
  void now_and_then(Launch& launch) {
    taking_kernel<<<blocks(), block_threads, 0, launch.stream>>>(in_, kept_.get<float>(), out_, count_, random_() % 3 != 0);
  }

 private:
  OwnMemory kept_;
  std::minstd_rand random_;
};

}  // namespace

extern constinit const selftest::Case gpu_cache_for_others =
    pair_of<&GpuDoubling::doubled, LeavesLittleCache>({.does = "leaves its baseline's kernel little of the L1 cache",
                                                       .must = timed_otherwise,
                                                       .baseline = call<&LeavesLittleCache::chases>,
                                                       .prepare = call<&LeavesLittleCache::set>});
extern constinit const selftest::Case gpu_taken_now_and_then =
    pair_of<&TakesOver::now_and_then>({.does = "takes over what its baseline computed in the same round, in two of three rounds",
                                       .must = timed_otherwise,
                                       .baseline = call<&TakesOver::share>,
                                       .rounds = 250});

}  // namespace aisp::ch97
