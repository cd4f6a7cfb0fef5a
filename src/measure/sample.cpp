// SPDX-License-Identifier: Apache-2.0
#include "measure/sample.hpp"

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

}  // namespace aisp::measure
