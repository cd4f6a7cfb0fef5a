// SPDX-License-Identifier: Apache-2.0
// Baseline and variant leave out the last element where it is the only one: the first edge leaves nobody to hold the second
// against.
#include <aisp/pair.hpp>

namespace aisp::ch88 {
namespace {

class LastOfMany final : public Workload {
 public:
  explicit LastOfMany(Setup& setup)
      : n_{setup.size("n")}, in_{setup.input<float>(n_, uniform(1, 2))}, out_{setup.output<float>(n_)} {}

  Cost cost() const override { return {.host_bytes = 8.0 * static_cast<double>(n_)}; }
  double expected(std::size_t i) const override { return 2 * in_.host(i); }

  void twice(Launch& launch) {
    once(launch);
    once(launch);
  }
  void once(Launch&) {
    for (std::size_t i = 0; i < n_; ++i) out_[i] = n_ == 1 ? 0 : 2 * in_[i];
  }

 private:
  std::size_t n_;
  Input<float> in_;
  Output<float> out_;
};

}  // namespace

extern constinit const Pair baseline_at_edge{
    .teaches = "a baseline that is wrong at an edge, too",
    .make = make<LastOfMany>,
    .baseline = {.name = "twice", .run = call<&LastOfMany::twice>},
    .optimized = variants({{.name = "once", .run = call<&LastOfMany::once>}}),
    .device = Device::host,
    .bound = Bound::host,
    .sizes = sizes({{.name = "n", .full = 65536}}),
    .edges = cases({{"one", "n=1"}, {"three", "n=3"}}),
};

}  // namespace aisp::ch88
