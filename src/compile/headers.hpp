// SPDX-License-Identifier: Apache-2.0
// The headers that a source compiled at run time can include: they are in the executable.
#pragma once
#include <aisp/libraries/nvrtc.hpp>

#include <span>
#include <string_view>
#include <vector>

namespace aisp::compile {

struct Header {
  std::string_view name;  // "aisp/device/reduce.cuh"
  std::string_view text;
};

// Those of include/aisp/device, and what they include of CUDA and the standard library; generated (cmake/headers.cmake).
std::span<const Header> device_headers();

// The headers that the source includes, itself or by way of others, by the names that the #includes have: what NVRTC compares.
// What is not in the executable is left out; the compiler says so better.
std::vector<NamedText> reached_headers(const KernelSource& source);

}  // namespace aisp::compile
