// SPDX-License-Identifier: Apache-2.0
// Noise that comes on order: every process takes one byte off the file that AISP_FIXTURE_SLOW_ONCE names, and in the one that
// takes the last the optimized variant is slow.
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "../doubling.hpp"

namespace aisp::ch90 {
namespace {

bool takes_the_last_byte() {
  const char* file = std::getenv("AISP_FIXTURE_SLOW_ONCE");
  std::error_code error;
  const auto size = file == nullptr ? 0 : std::filesystem::file_size(file, error);
  if (file == nullptr || error || size == 0) return false;
  std::filesystem::resize_file(file, size - 1);
  return size == 1;
}

class SlowOnce final : public fixtures::Doubling {
  bool slow_;

 public:
  explicit SlowOnce(Setup& setup) : Doubling{setup}, slow_{takes_the_last_byte()} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    // By so much that no expectation is wide enough for it.
    for (int pass = 0; slow_ && pass < 4; ++pass) slow(launch);
    doubled(launch);
  }
};

}  // namespace

extern constinit const Pair slow_once{
    .teaches = "one slow night is no regression",
    .make = make<SlowOnce>,
    .baseline = {"slow", call<&SlowOnce::baseline>},
    .optimized = variants({{"doubled", call<&SlowOnce::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch90
