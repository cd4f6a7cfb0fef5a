// SPDX-License-Identifier: Apache-2.0
// All that g++ and nvcc both make of the public headers, for test_closures.py: it is compiled by both, and inline functions are
// kept. Templates have to be named.
#pragma once
#include <aisp/pair.hpp>
#include <aisp/peer.hpp>
#include <aisp/ragged.hpp>
#include <aisp/selftest.hpp>
#include <aisp/tensor_map.hpp>
#include <aisp/threads.hpp>

#include <aisp/libraries/cublaslt.hpp>
#include <aisp/libraries/cudnn.hpp>
#include <aisp/libraries/cusparse.hpp>
#include <aisp/libraries/cusparselt.hpp>
#include <aisp/libraries/cutlass_sparse.hpp>
#include <aisp/libraries/nccl.hpp>
#include <aisp/libraries/nvjitlink.hpp>
#include <aisp/libraries/nvrtc.hpp>

namespace aisp {

struct AnyProducts {
  template <class One>
  void operator()(const One& one) const {
    one(nullptr, nullptr, nullptr);
  }
};
template void MatmulPlan::tune<AnyProducts>(cudaStream_t, const AnyProducts&, float);
template HostFill<int> ragged_offsets<int>(Pattern, std::int64_t, std::vector<std::int64_t>);
template HostFill<int> row_offsets<int>(Pattern, std::int64_t);
inline void launch_any(const Launch& launch, void (*kernel)(float*, int)) { launch(kernel, {1, 1}, nullptr, 1); }
template double pattern_value<double>(const Pattern&, std::uint64_t, std::uint64_t);

}  // namespace aisp
