// SPDX-License-Identifier: Apache-2.0
// The only symbol of libaisp_cutlass.so that can be seen from outside.
#include "libraries/cutlass_table.hpp"

#include <aisp/check.hpp>

#include <cstdio>
#include <string>

#include "libraries/cutlass_kernels.hpp"

#ifndef AISP_CUTLASS_VERSION  // by checks that only read this file; the build says which it is
#define AISP_CUTLASS_VERSION ""
#endif

namespace aisp {

namespace libraries {
namespace {

template <class Call>
int guarded(CutlassTrouble* trouble, const Call& call) noexcept {
  const auto say = [trouble](const std::exception& reason) {
    std::snprintf(trouble->text, sizeof trouble->text, "%s", reason.what());
  };
  try {
    call();
    return 0;
  } catch (const CudaError& reason) {
    say(reason);
    return reason.status();
  } catch (const Unsupported& reason) {
    say(reason);
    return cutlass_unsupported;
  } catch (const std::exception& reason) {
    say(reason);
    return cutlass_failed;
  }
}

std::unique_ptr<CutlassPlan> plan_of(const CutlassRequest& request) {
  switch (request.product) {
    case CutlassProduct::bf16: return bf16_plan(request.problem);
    case CutlassProduct::multistage: return multistage_plan(request.problem);
    case CutlassProduct::fp8: return fp8_plan(request.problem);
    case CutlassProduct::block_scaled: return block_scaled_plan(request.problem, request.a_scales, request.b_scales);
    case CutlassProduct::sparse: return sparse_plan(request.problem, request.stream);
    case CutlassProduct::sm100:
#ifdef AISP_CUTLASS_SM100
      return sm100_plan(request.problem);
#else
      throw Unsupported{
          "libaisp_cutlass.so was built without kernels for sm_100a; build it with 100a in AISP_CUDA_ARCHITECTURES"};
#endif
  }
  throw Unsupported{"libaisp_cutlass.so has no product of that number"};
}

int plan(const CutlassRequest* request, CutlassPlan** plan, CutlassTrouble* trouble) {
  return guarded(trouble, [=] { *plan = plan_of(*request).release(); });
}

int run(CutlassPlan* plan, cudaStream_t stream, CutlassTrouble* trouble) {
  return guarded(trouble, [=] { plan->run(stream); });
}

void destroy(CutlassPlan* plan) { delete plan; }

constexpr CutlassTable table{cutlass_interface, AISP_CUTLASS_VERSION, plan, run, destroy};

}  // namespace
}  // namespace libraries
}  // namespace aisp

extern "C" [[gnu::visibility("default")]] const aisp::libraries::CutlassTable* aisp_cutlass_table() {
  return &aisp::libraries::table;
}
