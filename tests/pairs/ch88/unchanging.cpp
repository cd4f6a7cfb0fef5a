// SPDX-License-Identifier: Apache-2.0
#include <aisp/pair.hpp>

#include <algorithm>
#include <vector>

namespace aisp::ch88 {
namespace {

// The sum is known when the first run begins.
class Unchanging final : public Workload {
 public:
  explicit Unchanging(Setup& setup)
      : in_{setup.input<float>(1000, uniform(-1, 1), {.name = "in", .constant = true})},
        out_{setup.output<float>(in_.size(), {.name = "out"})} {}
  Cost cost() const override { return {.host_bytes = 8e3}; }
  double expected(std::size_t i) const override { return 2 * in_.host(i); }
  void prepare(Launch&) { doubled_.assign(in_.get(), in_.get() + in_.size()); }
  void computed(Launch&) {
    std::transform(in_.get(), in_.get() + in_.size(), out_.get(), [](float x) { return 2 * x; });
  }
  void copied(Launch&) {
    std::transform(doubled_.begin(), doubled_.end(), out_.get(), [](float x) { return 2 * x; });
  }

 private:
  Input<float> in_;
  Output<float> out_;
  std::vector<float> doubled_;
};

}  // namespace

extern constinit const Pair unchanging{
    .teaches = "has nothing to compute in a run that could not be computed before",
    .make = make<Unchanging>,
    .baseline = {.name = "computed", .run = call<&Unchanging::computed>},
    .optimized = variants({{.name = "copied", .run = call<&Unchanging::copied>, .prepare = call<&Unchanging::prepare>}}),
    .device = Device::host,
    .bound = Bound::host,
};

}  // namespace aisp::ch88
