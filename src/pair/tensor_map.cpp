// SPDX-License-Identifier: Apache-2.0
#include <aisp/driver_function.hpp>
#include <aisp/tensor_map.hpp>

#include <array>
#include <stdexcept>
#include <string>

namespace aisp {

CUtensorMap tensor_map(CUtensorMapDataType type, const void* device, std::span<const std::uint64_t> sizes,
                       std::span<const std::uint64_t> strides, std::span<const std::uint32_t> box, CUtensorMapSwizzle swizzle,
                       CUtensorMapInterleave interleave, CUtensorMapFloatOOBfill outside) {
  static const auto encode = [] {
    auto* const function = driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled", 12000);
    if (function == nullptr) throw Unsupported{"the driver knows no tensor maps"};
    return function;
  }();
  constexpr std::array<std::uint32_t, 5> ones = {1, 1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult status =
      encode(&map, type, static_cast<std::uint32_t>(sizes.size()), const_cast<void*>(device), sizes.data(), strides.data(),
             box.data(), ones.data(), interleave, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, outside);
  if (status != CUDA_SUCCESS)
    throw std::runtime_error{"cuTensorMapEncodeTiled refuses a tensor of " + std::to_string(sizes.size()) +
                             " dimensions: CUresult " + std::to_string(status)};
  return map;
}

}  // namespace aisp
