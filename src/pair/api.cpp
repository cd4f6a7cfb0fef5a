// SPDX-License-Identifier: Apache-2.0
// The parts of the public API that are not in its headers.
#include <aisp/driver_function.hpp>
#include <aisp/opened.hpp>
#include <aisp/tolerance.hpp>
#include <aisp/workload.hpp>

#include <fmt/format.h>
#include <aisp/check.hpp>
#include <aisp/dispatch.hpp>
#include <aisp/tensor_map.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>

namespace aisp {
namespace detail {

void not_compiled_for(std::string_view name, std::uint64_t value, std::initializer_list<std::uint64_t> compiled) {
  std::string list;
  for (const std::uint64_t& each : compiled) {
    const char* const before = &each == compiled.begin() ? "" : &each + 1 == compiled.end() ? " or " : ", ";
    list += fmt::format("{}{}", before, each);
  }
  throw Unsupported{fmt::format("{} must be {}, not {}; nothing else is compiled", name, list, value)};
}

void number_does_not_fit() { throw std::logic_error{"a number is too large for the kernel's parameter"}; }

void throw_contents_are_hidden() {
  throw std::logic_error{
      "a run, a reset or metrics ask host(), initial() or word() for an input that they have to read: read it from the buffer or "
      "the file, or declare it constant and ask in prepare"};
}

void throw_missing_driver_function(const char* name, unsigned since) {
  throw Unsupported{"the driver has no " + std::string{name} + ", which came with CUDA " + std::to_string(since / 1000) + "." +
                    std::to_string(since % 1000 / 10)};
}

void throw_library_not_declared(Library library) {
  throw std::logic_error{"a variant uses " + std::string{name_of(library)} + ", but neither its needs nor its pair's say so"};
}

}  // namespace detail

double Workload::expected(std::size_t) const {
  throw std::logic_error{"the workload declares no float64 reference: override expected() or expected_output()"};
}

double Workload::expected_output(int output, std::size_t index) const {
  if (output != 0) throw std::logic_error{"a workload with several outputs overrides expected_output()"};
  return expected(index);
}

double Workload::expected_quantized(std::string_view, int output, std::size_t index) const {
  return expected_output(output, index);
}

std::size_t Workload::output_length(int) const { return static_cast<std::size_t>(-1); }

Tolerance resolve(const Tolerance& tolerance, ElementType type) {
  if (holds_codes(type) && tolerance.kind == Tolerance::Kind::limits)
    throw std::logic_error{"bytes of codes have no norm: their limits are exact or within_steps()"};
  if (tolerance.kind != Tolerance::Kind::automatic) return tolerance;
  if (type > ElementType::e5m2) return exact;
  // Long sums are computed in parts, whose roundings do not accumulate: beyond this length the error stops growing.
  constexpr int longest_chain = 4096;
  // Rounding to a type narrower than the accumulator is the same for every correct result; sums in a narrower type have larger
  // errors.
  constexpr double of_stored = 1.5, of_sums = 3;
  const double stored = rounding_error(type);
  const double operands = rounding_error(tolerance.operands);
  const double accumulator = rounding_error(tolerance.accumulator);
  const double chain = std::min(tolerance.reduction, longest_chain);
  const double sums = of_sums * std::sqrt(2 * operands * operands + chain * accumulator * accumulator);
  const double storing = (stored > accumulator ? of_stored : of_sums) * stored;
  return within(std::sqrt(storing * storing + sums * sums));
}

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
