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

#define AISP_DRIVER(name) required_driver_function<decltype(name)>(#name, since)

CUdevice device_of(int ordinal) {
  CUdevice device = 0;
  must(AISP_DRIVER(cuDeviceGet)(&device, ordinal), "tell the GPU");
  return device;
}

}  // namespace

GreenContext::GreenContext(int ordinal, CUdevResource& sms) {
  CUdevResourceDesc description = nullptr;
  must(AISP_DRIVER(cuDevResourceGenerateDesc)(&description, &sms, 1), "describe SMs");
  must(AISP_DRIVER(cuGreenCtxCreate)(&context_, description, device_of(ordinal), CU_GREEN_CTX_DEFAULT_STREAM),
       "make a green context");
}

GreenContext::~GreenContext() { driver_function<decltype(cuGreenCtxDestroy)>("cuGreenCtxDestroy", since)(context_); }

CUdevResource GreenContext::sms() const {
  CUdevResource sms{};
  must(AISP_DRIVER(cuGreenCtxGetDevResource)(context_, &sms, CU_DEV_RESOURCE_TYPE_SM), "tell the SMs of a green context");
  return sms;
}

cudaStream_t GreenContext::make_stream() const {
  cudaStream_t stream = nullptr;
  must(AISP_DRIVER(cuGreenCtxStreamCreate)(&stream, context_, CU_STREAM_NON_BLOCKING, 0), "make a stream on some SMs");
  return stream;
}

SmPart::SmPart(int ordinal, CUdevResource& sms)
    : context_{ordinal, sms}, stream_{context_.make_stream()}, sms_{static_cast<int>(sms.sm.smCount)} {}

SmPart::~SmPart() { cudaStreamDestroy(stream_); }

CUdevResource& SmParts::rest_of(int ordinal) {
  const auto known = rest_.find(ordinal);
  if (known == rest_.end()) {
    CUdevResource all{};
    must(AISP_DRIVER(cuDeviceGetDevResource)(device_of(ordinal), &all, CU_DEV_RESOURCE_TYPE_SM), "tell the GPU's SMs");
    return rest_.emplace(ordinal, all).first->second;
  }
  if (known->second.sm.smCount > 0) {
    split_.push_back(std::make_unique<GreenContext>(ordinal, known->second));
    known->second = split_.back()->sms();
  }
  return known->second;
}

const SmPart& SmParts::add(int ordinal, int sms) {
  if (sms <= 0) throw std::logic_error{fmt::format("a stream on {} SMs", sms)};
  CUdevResource& rest = rest_of(ordinal);
  if (rest.sm.smCount < static_cast<unsigned>(sms))
    throw Unsupported{fmt::format("{} SMs are to be set apart, and {} are left", sms, rest.sm.smCount)};
  CUdevResource part = rest, left{};
  // A remainder that is used whole need not be split, and cannot be if it is no whole number of the chip's groups.
  if (rest.sm.smCount > static_cast<unsigned>(sms)) {
    unsigned parts = 1;
    must(AISP_DRIVER(cuDevSmResourceSplitByCount)(&part, &parts, &rest, &left, 0, static_cast<unsigned>(sms)), "set SMs apart");
  }
  parts_.push_back(std::make_unique<SmPart>(ordinal, part));
  rest = left;
  return *parts_.back();
}

}  // namespace aisp::pair
