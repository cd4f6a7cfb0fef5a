// SPDX-License-Identifier: Apache-2.0
// The same code twice on the GPU, in a kernel of little more than a launch.
#include "../chain.cuh"

namespace aisp::ch90 {
namespace {

using Chain = fixtures::GpuChain<50>;

}  // namespace

extern constinit const Pair gpu_equal_short{
    .teaches = "the same code twice in a short kernel on a GPU, or slower by AISP_FIXTURE_SLOWED_PERCENT",
    .make = make<Chain>,
    .baseline = {"walked", call<&Chain::walked>},
    .optimized = variants({{"again", call<&Chain::again>}}),
    .bound = Bound::compute,
    .tolerance = exact,
};

}  // namespace aisp::ch90
