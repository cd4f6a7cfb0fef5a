// SPDX-License-Identifier: Apache-2.0
#include "measure/sample.hpp"

#include <algorithm>

#include "measure/execution.hpp"
#include "measure/statistics/statistics.hpp"

namespace aisp::measure {
namespace {

class Collector final : public Metrics {
 public:
  void report(const char* name, double value, const char* unit, Better better) override {
    values.push_back({name, value, unit, better});
  }
  void report_rate(const char* name, double count, const char* unit) override {
    values.push_back({name, count, unit, Better::higher, true});
  }
  std::vector<MetricValue> values;
};

}  // namespace

std::vector<MetricValue> collect_metrics(Workload& workload, std::string_view variant) {
  Collector collector;
  workload.metrics(variant, collector);
  return std::move(collector.values);
}

std::optional<double> host_ms_without_waits(const Sample& sample) {
  if (!sample.cpu_wait_ms) return std::nullopt;
  return std::max(sample.caller_cpu_ms, sample.host_ms - *sample.cpu_wait_ms);
}

double own_host_ms(const std::vector<Sample>& samples) {
  std::vector<double> undisturbed_ms, own_ms;
  for (const Sample& sample : samples) {
    const std::optional<double> ms = host_ms_without_waits(sample);
    if (!ms) continue;
    own_ms.push_back(*ms);
    if (undisturbed(*sample.cpu_wait_ms, sample.host_ms)) undisturbed_ms.push_back(sample.host_ms);
  }
  if (own_ms.empty()) return 0;
  if (2 * undisturbed_ms.size() > own_ms.size()) return median_in_place(undisturbed_ms);
  std::ranges::sort(own_ms);
  return percentile(own_ms, 75);
}

}  // namespace aisp::measure
