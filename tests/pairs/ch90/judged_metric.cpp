// SPDX-License-Identifier: Apache-2.0
// Judged by a metric of its own: bytes moved, of which the optimized variant needs half.
#include "../doubling.hpp"

namespace aisp::ch90 {
namespace {

class JudgedMetric final : public fixtures::Doubling {
 public:
  explicit JudgedMetric(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { doubled(launch); }
  void optimized(Launch& launch) { doubled(launch); }
  void metrics(std::string_view variant, Metrics& metrics) override {
    const double bytes = static_cast<double>(out_.bytes());
    metrics.report("bytes_moved", variant == "slow" ? 2 * bytes : bytes, "B", Metrics::Better::lower);
  }
};

}  // namespace

extern constinit const Pair judged_metric{
    .teaches = "judged by a metric of its own: bytes moved, of which the optimized variant needs half",
    .make = make<JudgedMetric>,
    .baseline = {"slow", call<&JudgedMetric::baseline>},
    .optimized = variants({{"doubled", call<&JudgedMetric::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .judged_by = "bytes_moved",
};

}  // namespace aisp::ch90
