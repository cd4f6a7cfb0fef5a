// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>
#include <aisp/check.hpp>

namespace aisp {

// Returns an attribute of the current device.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

inline unsigned multiprocessors() { return static_cast<unsigned>(device_attribute(cudaDevAttrMultiProcessorCount)); }

}  // namespace aisp
