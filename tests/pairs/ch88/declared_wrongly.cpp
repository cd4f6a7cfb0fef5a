// SPDX-License-Identifier: Apache-2.0
#include "../doubling.hpp"

namespace aisp::ch88 {
namespace {

class DeclaredWrongly final : public fixtures::Doubling {
 public:
  explicit DeclaredWrongly(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { doubled(launch); }
};

}  // namespace

extern constinit const Pair declared_wrongly{
    .teaches =
        "two of its variants have one name, its lesson is none of them, and a case of its sweep sets a size that it has not",
    .lesson = "tripled",
    .make = make<DeclaredWrongly>,
    .baseline = {"slow", call<&DeclaredWrongly::baseline>},
    .optimized = variants({{"doubled", call<&DeclaredWrongly::optimized>}, {"doubled", call<&DeclaredWrongly::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .sizes = sizes({{.name = "rows", .full = 512, .multiple = 64}}),
    .sweep = cases({{"small", "row=64"}}),
};

}  // namespace aisp::ch88
