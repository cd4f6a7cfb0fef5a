// SPDX-License-Identifier: Apache-2.0
#include "pair/sm_part.hpp"

#include <fmt/format.h>
#include <aisp/check.hpp>
#include <aisp/driver_function.hpp>

#include <stdexcept>

namespace aisp::pair {
namespace {

constexpr unsigned since = 12050;

void must(CUresult status, const char* what) {
  if (status != CUDA_SUCCESS)
    throw Unsupported{fmt::format("the driver cannot {} (CUresult {})", what, static_cast<int>(status))};
}

template <class Function>
Function& needed(const char* name) {
  Function* const function = driver_function<Function>(name, since);
  if (function == nullptr) throw Unsupported{fmt::format("setting SMs apart needs a driver of CUDA 12.5 ({})", name)};
  return *function;
}
#define AISP_DRIVER(name) needed<decltype(name)>(#name)

CUdevice device_of(int ordinal) {
  CUdevice device = 0;
  must(AISP_DRIVER(cuDeviceGet)(&device, ordinal), "tell the GPU");
  return device;
}

}  // namespace

CUdevResource SmPart::all(int ordinal) {
  CUdevResource sms{};
  must(AISP_DRIVER(cuDeviceGetDevResource)(device_of(ordinal), &sms, CU_DEV_RESOURCE_TYPE_SM), "tell the GPU's SMs");
  return sms;
}

SmPart::SmPart(int ordinal, int sms, CUdevResource& rest) {
  if (sms <= 0) throw std::logic_error{fmt::format("a stream on {} SMs", sms)};
  if (rest.sm.smCount < static_cast<unsigned>(sms))
    throw Unsupported{fmt::format("{} SMs are to be set apart, and {} are left", sms, rest.sm.smCount)};
  CUdevResource part{}, left{};
  unsigned parts = 1;
  must(AISP_DRIVER(cuDevSmResourceSplitByCount)(&part, &parts, &rest, &left, 0, static_cast<unsigned>(sms)), "set SMs apart");
  CUdevResourceDesc description = nullptr;
  must(AISP_DRIVER(cuDevResourceGenerateDesc)(&description, &part, 1), "describe SMs");
  must(AISP_DRIVER(cuGreenCtxCreate)(&context_, description, device_of(ordinal), CU_GREEN_CTX_DEFAULT_STREAM),
       "make a green context");
  const CUresult status = AISP_DRIVER(cuGreenCtxStreamCreate)(&stream_, context_, CU_STREAM_NON_BLOCKING, 0);
  if (status != CUDA_SUCCESS) {
    AISP_DRIVER(cuGreenCtxDestroy)(context_);
    must(status, "make a stream on some SMs");
  }
  rest = left;
  sms_ = static_cast<int>(part.sm.smCount);
}

SmPart::~SmPart() {
  cudaStreamDestroy(stream_);
  driver_function<decltype(cuGreenCtxDestroy)>("cuGreenCtxDestroy", since)(context_);
}

const SmPart& SmParts::add(int ordinal, int sms) {
  const auto [rest, is_first] = rest_.try_emplace(ordinal);
  if (is_first) rest->second = SmPart::all(ordinal);
  return *parts_.emplace_back(std::make_unique<SmPart>(ordinal, sms, rest->second));
}

}  // namespace aisp::pair
