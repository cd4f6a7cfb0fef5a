// SPDX-License-Identifier: Apache-2.0
// Needs a library that few machines have.
#include "../doubling.hpp"

namespace aisp::ch95 {
namespace {

class AbsentLibrary final : public fixtures::Doubling {
 public:
  explicit AbsentLibrary(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
};

}  // namespace

extern constinit const Pair absent_library{
    .teaches = "needs a library that few machines have",
    .make = make<AbsentLibrary>,
    .baseline = {"slow", call<&AbsentLibrary::baseline>},
    .optimized = variants({{"doubled", call<&AbsentLibrary::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .needs = {.libraries = {Library::cusparselt}},
};

}  // namespace aisp::ch95
