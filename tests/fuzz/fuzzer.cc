// SPDX-License-Identifier: Apache-2.0
// One libFuzzer target for each reader; AISP_READER is its number.
#include <cstddef>
#include <cstdint>

#include "fuzz/readers.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  aisp::fuzz::feed(aisp::fuzz::readers()[AISP_READER], {reinterpret_cast<const char*>(data), size});
  return 0;
}
